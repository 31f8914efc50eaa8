"""Files into a buffer and back: lossless, repeatable, after a kill, by weights."""

import json
import multiprocessing
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from buffer_helpers import experts

from rapo_rllib.buffer.build import ensure_built, step_traces
from rapo_rllib.buffer.exporting import export_traces
from rapo_rllib.buffer.importing import ImportPlan, import_traces, survey, usable_traces
from rapo_rllib.buffer.keys import trace_id
from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.store import SOURCE_WEIGHTS, StepTraceBuffer
from rapo_rllib.settings import BufferSettings
from rapo_rllib.trace_formats.exported import row_of_trace
from rapo_rllib.types import StepTrace

SPAWN = multiprocessing.get_context("spawn")


def steps_file(path: Path, count: int, source: str, reward: float = 1.0) -> Path:
    """``count`` trajectories of two steps each, as step traces."""
    traces = [trace for expert in experts(count) for trace in step_traces(expert)]
    rows = [row_of_trace(trace) | {"source": source, "reward": reward, "id": ""} for trace in traces]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def import_all(buffer: StepTraceBuffer, plan: ImportPlan, on_progress=None) -> int:
    return import_traces(buffer, plan, survey(plan), on_progress)


def contents(buffer: StepTraceBuffer) -> dict[str, StepTrace]:
    return {trace.id: trace for trace in buffer.all_traces()}


def test_what_was_exported_is_the_same_buffer(make_buffer, tmp_path) -> None:
    original = make_buffer(collection="original")
    odd = StepTrace("given-id", "q\u2028\n\"'\\", "é" * 40_000, "\u2211 \U0001f600 \x00", -0.1 + 0.3, "q7", 3, "gpt\n4", 12)
    original.create()
    original.insert([odd, *(trace for expert in experts(3) for trace in step_traces(expert))])
    original.set_note(SOURCE_WEIGHTS, {"gpt\n4": 0.5})
    seen = []
    assert export_traces(original, tmp_path / "a.jsonl.gz", on_progress=lambda *counts: seen.append(counts)) == 7
    assert seen == [(7, 7)]
    assert sorted(os.listdir(tmp_path)) == sorted({"a.jsonl.gz", *os.listdir(tmp_path)} - {".a.jsonl.gz.part"})

    copy = make_buffer(collection="copy")
    assert import_all(copy, ImportPlan((tmp_path / "a.jsonl.gz",))) == 7
    assert contents(copy) == contents(original)
    assert copy.source_weights() == {"gpt\n4": 0.5}
    assert ensure_built(make_buffer(collection="copy", traces=None), None) == 7  # a job can use it as it is


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.csv", r"a\.csv: the file's name must end in \.jsonl or \.jsonl\.gz"),
        ("there.jsonl", r"there\.jsonl is there already; name another file, or allow it with --replace"),
        ("gone/a.jsonl", r"there is no folder .*gone"),
    ],
)
def test_where_nothing_can_be_exported_to(make_buffer, tmp_path, name, message) -> None:
    (tmp_path / "there.jsonl").touch()
    with pytest.raises(ValueError, match=message):
        export_traces(make_buffer(), tmp_path / name)


def import_and_die(uri: str, path: str) -> None:
    def die(progress) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    import_all(StepTraceBuffer(BufferSettings(uri=uri)), ImportPlan((Path(path),)), die)


def test_an_import_that_was_killed_goes_on(make_buffer, tmp_path) -> None:
    buffer, path = make_buffer(), steps_file(tmp_path / "a.jsonl", 40, "s")
    killed = SPAWN.Process(target=import_and_die, args=(buffer.uri, str(path)))
    killed.start()
    killed.join(400)
    assert killed.exitcode == -signal.SIGKILL
    assert buffer.count() == 64
    assert buffer.note("import") == {"files": [str(path)], "complete": False}
    embedded = []
    encode = buffer.embedder.encode
    buffer.embedder.encode = lambda pairs: embedded.append(len(pairs)) or encode(pairs)
    plan, seen = ImportPlan((path,)), []
    assert import_all(buffer, plan, seen.append) == 16
    assert embedded == [16]  # what is stored is not embedded again
    assert (seen[-1].seen, seen[-1].embedded, seen[-1].total) == (80, 16, 80)
    assert buffer.note("import")["complete"]
    assert import_all(buffer, plan) == 0
    assert buffer.count() == 80


def test_sources_share_by_their_weights(tmp_path) -> None:
    files = (steps_file(tmp_path / "a.jsonl", 10, "a"), steps_file(tmp_path / "b.jsonl", 10, "b"))
    plan = ImportPlan((*files, steps_file(tmp_path / "c.jsonl", 1, "c")), weights={"a": 3.0}, max_traces=14)
    report = survey(plan)
    assert report.given == {"a": 9, "b": 3, "c": 2}
    assert report.dropped == {"beyond --max-traces": 28}
    assert report.weights == {"a": 3.0}
    with pytest.raises(ValueError, match=r"--weight d=…: no file has this source; theirs are a, b, c"):
        survey(ImportPlan(plan.files, weights={"d": 1.0}))


def test_only_so_many_are_stored_and_weights_are_kept(make_buffer, tmp_path) -> None:
    files = (steps_file(tmp_path / "a.jsonl", 4, "a"), steps_file(tmp_path / "b.jsonl", 4, "b"))
    buffer = make_buffer()
    import_all(buffer, ImportPlan(files, weights={"a": 2.0, "b": 1.0}, max_traces=6))
    assert Counter(trace.source for trace in buffer.all_traces()) == {"a": 4, "b": 2}
    assert buffer.source_weights() == {"a": 2.0, "b": 1.0}
    import_all(buffer, ImportPlan(files[:1], source="other", weights={"other": 0.5}))
    assert buffer.source_weights() == {"a": 2.0, "b": 1.0, "other": 0.5}
    assert buffer.note("built")["count"] == buffer.count() == 14


@pytest.mark.parametrize(
    ("choices", "kept", "dropped"),
    [
        ({}, 4, {"reward not positive": 8}),
        ({"min_reward": 0.0}, 8, {"reward below --min-reward": 4}),
        ({"min_reward": -1.0}, 12, {}),
        ({"min_reward": 2.0}, 0, {"reward below --min-reward": 12}),
        (
            {"guard": LeakGuard([next(iter(experts(1))).question.text])},
            2,
            {"reward not positive": 8, "question of the evaluation": 2},
        ),
    ],
)
def test_what_is_left_out_is_counted(tmp_path, choices, kept, dropped) -> None:
    rewards = {"a": 1.0, "b": 0.0, "c": -1.0}
    files = tuple(steps_file(tmp_path / f"{name}.jsonl", 2, name, reward) for name, reward in rewards.items())
    plan, counted = ImportPlan(files, **choices), Counter()
    assert (len(list(usable_traces(plan, counted))), counted) == (kept, dropped)
    if not kept:
        with pytest.raises(ValueError, match=r"nothing to import \(reward below --min-reward: 12\)"):
            survey(plan)


def test_another_name_for_the_source_is_another_id(tmp_path) -> None:
    plan = ImportPlan((steps_file(tmp_path / "a.jsonl", 1, "a"),), source="b")
    for trace in usable_traces(plan, Counter()):
        assert (trace.source, trace.id) == ("b", trace_id(trace.question, trace.history, trace.text, "b"))
