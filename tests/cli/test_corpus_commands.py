"""``rllib corpus``: build, look into it, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_runs import said

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.cli import terminal
from rapo_rllib.corpus import build as build_module
from rapo_rllib.corpus.build import BuildProgress
from rapo_rllib.settings import BufferSettings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": i, "title": f"Town {i}", "text": f"It has {i} houses."} for i in range(20)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


run = partial(said, "corpus")


def test_built_searched_and_described(folder: Path) -> None:
    output = run("build", "p.jsonl")
    assert "20/20" in output and "holds 20 passages; 20 were added." in output
    assert "holds 20 passages; 0 were added." in run("build", "p.jsonl")
    assert run("search", "Town 7", "--top-k", "1", "--mode", "bm25").startswith("[1] Town 7  (")
    found = json.loads(run("search", "Town 7", "--top-k", "1", "--mode", "bm25", "--json"))
    assert (found["id"], found["title"], found["text"]) == ("7", "Town 7", "It has 7 houses.")
    assert "Nothing was found." in run("search", "zzyzx", "--mode", "bm25")
    lines = run("stats").splitlines()
    assert lines[0].endswith("corpus.db: 20 passages")
    assert lines[1:] == ["embedder: all-minilm-l6-v2", f"files: {folder / 'p.jsonl'}"]
    (folder / "one.jsonl").write_text('{"txt": "alone"}\n')
    run("build", "one.jsonl", "--replace", status=1)
    assert run("stats").splitlines()[0].endswith("20 passages")  # a wrong file replaces nothing
    (folder / "one.jsonl").write_text('{"text": "alone"}\n')
    assert "holds 1 passages; 1 were added." in run("build", "one.jsonl", "--replace")


def test_what_is_no_corpus_is_not_replaced(folder: Path) -> None:
    with closing(StepTraceBuffer(BufferSettings(uri="corpus.db", collection="passages"))) as buffer:
        buffer.create()
    assert "is no corpus of this package" in run("build", "p.jsonl", "--replace", status=1)
    with closing(StepTraceBuffer(BufferSettings(uri="corpus.db", collection="passages"))) as buffer:
        assert buffer.exists()


@pytest.mark.parametrize(("option", "command"), [((), "The same command"), (("--replace",), "The command without --replace")])
def test_ctrl_c_says_that_it_can_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], command: str
) -> None:
    monkeypatch.setattr(build_module, "BATCH", 8)
    show = terminal.advance

    def interrupted(bar: Any, progress: BuildProgress) -> None:
        show(bar, progress)
        if progress.done == 16:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(terminal, "advance", interrupted)
        output = run("build", "p.jsonl", *option, status=130)
    assert f"Stopped after 16 passages. {command}, run again, continues from there." in output
    assert f"Not complete: run `rllib corpus build` again for {folder / 'p.jsonl'}." in run("stats")
    assert "holds 20 passages; 4 were added." in run("build", "p.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "gone.jsonl"], "there is no file gone.jsonl"),
        (["build", "p.jsonl", "--passages-field", "body"], "p.jsonl, line 1: field 'body' must be a list of passages"),
        (["build", "p.jsonl", "--uri", "corpus"], "--uri: 'corpus' is neither a Milvus Lite path"),
        (["build", "p.jsonl", "--collection", "a-b"], "--collection must be letters"),
        (["build", "p.jsonl", "--embedder", "./gone"], "--embedder: there is no sentence-transformers model in './gone'"),
        (["build", "p.jsonl", "--uri", "http://localhost:1"], "correct --uri"),
        (["search", "a"], "there is no collection 'passages' at"),
        (["stats", "--uri", "./other.db"], "rllib corpus build FILE --uri ./other.db --collection passages"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, arguments: list[str], message: str) -> None:
    assert message in " ".join(run(*arguments, status=1).split("\n"))
