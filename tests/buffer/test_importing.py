"""Files into a buffer and back: lossless, repeatable, after a kill."""

import json
import os
import signal
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from buffer_helpers import experts
from processes import run_until_it_kills_itself

from rapo_rllib.buffer import writing
from rapo_rllib.buffer.build import ensure_built, step_traces
from rapo_rllib.buffer.files import ImportPlan, export_traces, import_traces, survey, usable_traces
from rapo_rllib.buffer.keys import id_of, trace_id
from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, StepTrace


def steps_file(path: Path, count: int, source: str, reward: float = 1.0) -> Path:
    """``count`` trajectories of two steps each, as step traces."""
    traces = [trace for expert in experts(count) for trace in step_traces(expert)]
    rows = [asdict(trace) | {"source": source, "reward": reward, "id": ""} for trace in traces]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def import_all(buffer: StepTraceBuffer, plan: ImportPlan, on_progress=None) -> int:
    return import_traces(buffer, plan, survey(plan), on_progress).added


def contents(buffer: StepTraceBuffer) -> dict[str, StepTrace]:
    return {trace.id: trace for trace in buffer.all_traces()}


def test_what_was_exported_is_the_same_buffer(make_buffer, tmp_path) -> None:
    original = make_buffer(collection="original")
    odd = StepTrace("", "q\u2028\n\"'\\", "é" * 30_000, "\u2211 \U0001f600 \x00", -0.1 + 0.3, "q7", 3, "gpt\n4", 12)
    odd = replace(odd, id=id_of(odd))
    original.create()
    original.insert([odd, *(trace for expert in experts(3) for trace in step_traces(expert))])
    assert export_traces(original, tmp_path / "a.jsonl.gz") == 7
    assert sorted(os.listdir(tmp_path)) == sorted({"a.jsonl.gz", *os.listdir(tmp_path)} - {".a.jsonl.gz.part"})

    copy = make_buffer(collection="copy")
    assert import_all(copy, ImportPlan((tmp_path / "a.jsonl.gz",))) == 7
    assert contents(copy) == contents(original)
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
    run_until_it_kills_itself(import_and_die, buffer.uri, str(path))
    assert buffer.count() == 64
    with pytest.raises(ValueError, match="there is no complete buffer"):
        ensure_built(make_buffer(traces=None), None)
    embedded = []
    encode = buffer.embedder.encode
    buffer.embedder.encode = lambda pairs: embedded.append(len(pairs)) or encode(pairs)
    plan, seen = ImportPlan((path,)), []
    assert import_all(buffer, plan, seen.append) == 16
    assert embedded == [16]  # what is stored is not embedded again
    assert (seen[-1].done, seen[-1].embedded, seen[-1].total) == (80, 16, 80)
    assert import_all(buffer, plan) == 0
    assert buffer.count() == 80


def test_only_so_many_are_stored(make_buffer, tmp_path) -> None:
    files = (steps_file(tmp_path / "a.jsonl", 2, "a"), steps_file(tmp_path / "b.jsonl", 4, "b"))
    plan = ImportPlan(files, max_traces=6)
    report = survey(plan)
    assert (report.given, report.dropped) == ({"a": 4, "b": 2}, {"beyond --max-traces": 6})
    buffer = make_buffer()
    import_all(buffer, plan)
    assert Counter(trace.source for trace in buffer.all_traces()) == {"a": 4, "b": 2}
    import_all(buffer, ImportPlan(files[:1], source="other"))
    assert buffer.count() == 10 and buffer.missing() == 0


def test_what_no_column_holds_is_left_out_and_counted(make_buffer, tmp_path) -> None:
    named = [("1", "I think."), ("2", "x" * 65_536), ("3", "é" * 32_768), ("4", "x" * 65_535)]
    plan, buffer = ImportPlan((ids_file(tmp_path / "a.jsonl", *named),)), make_buffer()
    assert survey(plan).dropped == {"question or step above 65,535 bytes": 2}
    assert import_all(buffer, plan) == 2
    assert {len(trace.text) for trace in buffer.all_traces()} == {8, 65_535}


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


def ids_file(path: Path, *named: tuple[str, str], **more) -> Path:
    """Steps of one source, of each its id and its text; each has another history."""
    traces = [StepTrace(id, "Who?", f"h{number}", text, 1.0, source="s") for number, (id, text) in enumerate(named)]
    path.write_text("".join(json.dumps(asdict(trace) | more) + "\n" for trace in traces), encoding="utf-8")
    return path


@pytest.mark.parametrize("more", [{}, {"history": "the same"}])
def test_what_a_file_calls_its_steps_does_not_matter(make_buffer, tmp_path, more) -> None:
    named = [("1", "I think."), ("1", "I know."), ("2", "I see."), ("1", "I think.")]
    plan = ImportPlan((ids_file(tmp_path / "a.jsonl", *named, **more), ids_file(tmp_path / "b.jsonl", ("2", "So."), **more)))
    report = survey(plan)
    shared = len(more)  # the last is the first step once more
    assert (report.given, report.dropped) == ({"s": 5 - shared}, {"the same step in another trajectory": 1} if shared else {})
    buffer = make_buffer()
    assert [import_all(buffer, plan), import_all(buffer, plan)] == [5 - shared, 0]
    stored = sorted(trace.text for trace in buffer.all_traces())
    assert stored == sorted(["I know.", "I see.", "So.", *["I think."] * (2 - shared)])
    assert all(id == id_of(trace) for id, trace in contents(buffer).items())


def test_an_export_that_was_edited_is_of_other_steps(make_buffer, tmp_path) -> None:
    buffer, path = make_buffer(), tmp_path / "a.jsonl"
    assert import_all(buffer, ImportPlan((ids_file(tmp_path / "b.jsonl", ("", "I think.")),))) == 1
    export_traces(buffer, path)
    path.write_text(path.read_text().replace("I think.", "I know."))
    assert import_all(buffer, ImportPlan((path,))) == 1
    assert {trace.text for trace in buffer.all_traces()} == {"I think.", "I know."}


def written_again(path: Path, **changed) -> Path:
    rows = [json.loads(line) | changed for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_corrected_rewards_reach_what_is_stored(make_buffer, tmp_path, monkeypatch) -> None:
    buffer, path = make_buffer(), steps_file(tmp_path / "a.jsonl", 3, "s", 0.5)
    with path.open("a") as file:
        print(json.dumps(asdict(StepTrace("", "Long?", "", "é" * 30_000, 0.5, source="s"))), file=file)
    plan, asked = ImportPlan((path,)), HistoryQuery("Long?", "")
    assert import_all(buffer, plan) == 7
    before = contents(buffer)
    assert buffer.retrieve([asked])[0][0].trace.reward == 0.5
    written_again(path, reward=0.25, question_id="q")
    with monkeypatch.context() as patch:
        patch.setattr(buffer.embedder, "encode", None)  # nothing is embedded again
        written = import_traces(buffer, plan, survey(plan))
    assert (written.added, written.updated) == (0, 7)
    assert contents(buffer) == {key: replace(trace, reward=0.25, question_id="q") for key, trace in before.items()}
    found = buffer.retrieve([asked])[0][0]
    assert (found.trace.reward, found.similarity) == (0.25, pytest.approx(1.0, abs=1e-3))
    assert import_traces(buffer, plan, survey(plan)).updated == 0


def test_a_shared_step_counts_once_and_has_the_best_reward(make_buffer, tmp_path) -> None:
    step = asdict(StepTrace("", "Who?", "", "I think.", 0.2, "q1", 0, "s"))
    rows = [
        step,
        step | {"text": "I know.", "reward": 0.1},
        step | {"reward": 0.9, "question_id": "q2"},
        step | {"reward": 0.5},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = ImportPlan((path,), max_traces=2)
    report = survey(plan)
    assert (report.given, report.dropped) == ({"s": 2}, {"the same step in another trajectory": 2})
    buffer = make_buffer()
    for expected in (2, 0), (0, 0):
        written = import_traces(buffer, plan, survey(plan))
        assert (written.added, written.updated) == expected
        assert {(t.text, t.reward, t.question_id) for t in buffer.all_traces()} == {
            ("I think.", 0.9, "q2"),
            ("I know.", 0.1, "q1"),
        }


def test_a_kill_after_the_last_row_is_made_good(make_buffer, tmp_path, monkeypatch) -> None:
    buffer, plan = make_buffer(), ImportPlan((steps_file(tmp_path / "a.jsonl", 2, "s"),))
    monkeypatch.setattr(writing, "WRITE_BATCH", 2)

    def interrupted(progress) -> None:
        if progress.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_all(buffer, plan, interrupted)
    assert (len(buffer.retrieve([HistoryQuery("Ann has apples.", "")], 9)[0]), buffer.count()) == (4, 4)
    assert import_all(buffer, plan) == 0
    buffer.milvus.delete(buffer.collection, list(contents(buffer))[:1])
    assert buffer.missing() == 1
