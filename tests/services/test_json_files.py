"""JSON that is read back: whatever is no JSON, or JSON of another shape, is refused by the file's name; never a TypeError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rapo_rllib.agents.journal import SETTINGS, TRANSCRIPTS, Journal
from rapo_rllib.checkpoints.folder import MANIFEST, atomic_directory, check_whole, strangers, whole_checkpoints
from rapo_rllib.cli.train.resume import noted, resume_config
from rapo_rllib.errors import CheckpointError
from rapo_rllib.learner.identity import IDENTITY, check_identity
from rapo_rllib.services.json_files import difference, read_json
from rapo_rllib.settings import ModelSettings

WRONG = (
    *("", "[]", "{}", "null", "0", '"text"', "true", "[[]]", "[{}]", "NaN", "{", "\0\0", "[" * 100_000, '{"files": {}}'),
    *('{"files": []}', '{"files": null}', '{"files": {"a": 1}}', '{"files": {"a": [1]}}', '{"files": {"a": ["1", "2"]}}'),
    *('{"format": 1}', '{"format": "1", "files": {"a": [1, 2]}}', '{"format": 1, "files": {"a": [1, 2]}}'),
    *('{"format": 2, "files": {}}', '{"format": 2, "files": {"a": [1, 2, 3]}}', '{"format": 2, "files": {"a": [true, 2]}}'),
    *('{"id": 1}', '{"trial_data": 1, "runner_data": {}}', '{"trial_data": [1]}', '{"trial_data": [["a"]], "runner_data": []}'),
    *('{"training_iteration": "1"}', '{"model": "a", "benchmark": "b"}'),
    *('{"question_id": "q", "number": "1", "tokens": 1, "rows": []}', '{"id": "q", "question": "?", "attempts": [1]}'),
    *('{"id": "q", "rewards": 1}', '{"name_or_path": "m", "config": 1}'),
)


@pytest.mark.parametrize(
    ("value", "shape", "told"),
    [
        ({"a": 1}, dict, ""),
        ([], dict, "it must be an object, not []"),
        (True, int, "it must be a whole number, not true"),
        (1, float, ""),
        (1.5, int, "it must be a whole number, not 1.5"),
        (None, str | None, ""),
        (3, str | None, "it must be a text or null, not 3"),
        ({"a": [1, "x"]}, {"a": [int]}, 'a.1 must be a whole number, not "x"'),
        ({"a": {"b": {}}}, {str: {str: str}}, "a.b must be a text, not {}"),
        ({}, {"a": int}, "a is missing"),
        ({"b": 1}, {"a?": int}, ""),
        ({"a": "x"}, {"a?": int}, 'a must be a whole number, not "x"'),
    ],
)
def test_where_a_value_differs_from_its_shape(value: object, shape: object, told: str) -> None:
    assert difference(value, shape) == told


def test_what_is_no_text_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"x\.json is damaged: it is no JSON"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("text", WRONG)
def test_no_wrong_list_of_files_is_taken_for_a_checkpoint(tmp_path: Path, text: str) -> None:
    for name in ("good", "bad"):
        with atomic_directory(tmp_path / name, iteration=1) as folder:
            (folder / "a").write_text("weights")
    (tmp_path / "bad" / MANIFEST).write_text(text)
    with pytest.raises(CheckpointError, match=rf"bad is no complete checkpoint of this package: {MANIFEST} "):
        check_whole(tmp_path / "bad")
    assert whole_checkpoints(tmp_path) == [tmp_path / "good"]
    assert strangers(tmp_path / "bad", [tmp_path / "bad"]) == ["a"]


def journal(folder: Path) -> None:
    with Journal(folder, {"models": ["m"]}, 1):
        pass


def identity(folder: Path) -> None:
    config = cast(Any, SimpleNamespace(to_dict=dict))
    check_identity(str(folder), ModelSettings("m"), config, needs_base=False)


READERS: list[tuple[str, Callable[[Path], object], str]] = [
    (SETTINGS, journal, ""),
    (TRANSCRIPTS, journal, ""),
    ("experiment_state-2026.json", lambda folder: resume_config(folder, {}), ""),
    ("result.json", lambda folder: noted(folder / "result.json"), ""),
    (IDENTITY, identity, ""),
]


@pytest.mark.parametrize(("name", "read", "before"), READERS, ids=[f"{name}-{bool(before)}" for name, _, before in READERS])
@pytest.mark.parametrize("text", [text for text in WRONG if text and "\0" not in text])
def test_a_wrong_line_is_refused_by_its_files_name(
    tmp_path: Path, name: str, read: Callable[[Path], object], before: str, text: str
) -> None:
    if name == TRANSCRIPTS:
        journal(tmp_path)
    (tmp_path / name).write_text(f"{before}{text}\n")
    with pytest.raises((ValueError, CheckpointError)) as told:
        read(tmp_path)
    assert name in str(told.value), told.value
    assert type(told.value) in (ValueError, CheckpointError)
