"""Lessons stand in the buffer beside steps: they are found at their places, filtered alike, and counted as what they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from buffer_helpers import experts

from rapo_rllib.buffer.build import ensure_built, step_traces
from rapo_rllib.buffer.coverage import coverage
from rapo_rllib.buffer.exporting import export_traces
from rapo_rllib.buffer.importing import ImportPlan, import_traces, survey
from rapo_rllib.buffer.keys import trace_id
from rapo_rllib.buffer.leak_check import leaks_in
from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.rows import FIELDS, LATER
from rapo_rllib.buffer.statistics import statistics
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.buffer.verifying import verify
from rapo_rllib.settings import TraceFilter
from rapo_rllib.types import LESSON, HistoryQuery, StepTrace

STEPS = [trace for expert in experts(3) for trace in step_traces(expert)]
ALONE = "How many legs have 7 spiders?"  # a question that nothing but a lesson is about


def lesson(question: str, history: str = "", text: str = "Add both numbers, then answer.", **fields) -> StepTrace:
    made = trace_id(question, history, text, "solver")
    return StepTrace(made, question, history, text, 1.0, "q", source="solver", kind=LESSON, lesson_of=("a", "b"), **fields)


LESSONS = [lesson(STEPS[0].question, STEPS[1].history, step_index=1), lesson(ALONE, text="A spider has 8 legs.")]


@pytest.fixture
def buffer(make_buffer: Callable[..., StepTraceBuffer]) -> StepTraceBuffer:
    made = make_buffer()
    ensure_built(made, lambda: experts(3))
    made.insert(LESSONS)
    return made


def test_a_lesson_is_found_at_its_place_as_it_was_stored(buffer: StepTraceBuffer) -> None:
    hits = buffer.retrieve([HistoryQuery(STEPS[0].question, STEPS[1].history)], top_k=2)[0]
    assert {hit.trace.id for hit in hits} == {STEPS[1].id, LESSONS[0].id}
    assert next(hit.trace for hit in hits if hit.trace.is_lesson) == LESSONS[0]
    assert sorted(buffer.all_traces(), key=lambda trace: trace.id) == sorted([*STEPS, *LESSONS], key=lambda trace: trace.id)


@pytest.mark.parametrize("index", ["auto", "hnsw"])
@pytest.mark.parametrize(("kind", "found"), [("step", STEPS), ("lesson", LESSONS)])
def test_one_kind_alone(
    buffer: StepTraceBuffer, make_buffer: Callable[..., StepTraceBuffer], index: str, kind: str, found: list[StepTrace]
) -> None:
    only = make_buffer(index=index, filter=TraceFilter(kind=kind))
    query = HistoryQuery(STEPS[0].question, STEPS[1].history)
    assert {hit.trace.id for hit in only.retrieve([query], top_k=20)[0]} == {trace.id for trace in found}
    drawn = only.random_traces([query] * 20, [random.Random(number) for number in range(20)])
    assert {trace.kind for trace in drawn if trace} == {kind}


def test_one_that_shows_the_answer_is_hidden_like_a_step(
    buffer: StepTraceBuffer, make_buffer: Callable[..., StepTraceBuffer]
) -> None:
    hiding = make_buffer(filter=TraceFilter(hide_answers=True, kind="lesson"))
    for answers, expected in ((("8",), LESSONS[:1]), (("9",), LESSONS)):
        hits = hiding.retrieve([HistoryQuery(ALONE, "", answers=answers)], top_k=5)[0]
        assert {hit.trace.id for hit in hits} == {trace.id for trace in expected}


def test_what_is_counted(buffer: StepTraceBuffer) -> None:
    assert coverage(buffer, [STEPS[0].question, ALONE]) == (1, 2)
    found = statistics(buffer)
    assert (found.traces, found.lessons, found.trajectories, found.questions) == (8, 2, 3, 3)
    assert found.steps_per_trajectory == {2: 3}
    assert leaks_in(buffer, LeakGuard([ALONE])) == {ALONE: 1}  # who evaluates on it may not be shown its lesson either


def test_verified(buffer: StepTraceBuffer) -> None:
    assert not verify(buffer).findings
    buffer.insert([replace(LESSONS[1], id=trace_id(ALONE, "", "x", "solver"), text="x", lesson_of=())])
    (finding,) = verify(buffer).findings
    assert finding.kind == "a lesson of no trajectories, or a step of some"


def test_exported_and_imported(buffer: StepTraceBuffer, make_buffer: Callable[..., StepTraceBuffer], tmp_path: Path) -> None:
    export_traces(buffer, tmp_path / "all.jsonl")
    copy = make_buffer(uri=str(tmp_path / "copy.db"))
    plan = ImportPlan((tmp_path / "all.jsonl",))
    import_traces(copy, plan, survey(plan))
    assert set(copy.all_traces()) == set(buffer.all_traces())


@pytest.mark.parametrize(
    ("field", "message"),
    [('"kind": "rule"', "field 'kind' must be 'step' or 'lesson', got 'rule'"), ('"lesson_of": "a"', "must be a list of ids")],
)
def test_a_file_that_is_wrong(tmp_path: Path, field: str, message: str) -> None:
    file = tmp_path / "wrong.jsonl"
    file.write_text(f'{{"question": "q", "history": "", "text": "t", {field}}}\n')
    with pytest.raises(ValueError, match=message):
        survey(ImportPlan((file,), "traces-steps"))


@pytest.mark.parametrize("index", ["auto", "hnsw"])
def test_a_buffer_of_an_earlier_version(make_buffer: Callable[..., StepTraceBuffer], index: str) -> None:
    old = make_buffer(index=index)
    old.set_note("embedder", old._made_by)
    old.milvus.create(old.collection, [field for field in FIELDS if field.name not in LATER], old.embedder.dim)
    assert old.insert(STEPS) == len(STEPS)
    old.insert_or_update([replace(STEPS[0], reward=0.5)])
    assert {trace.id: trace.reward for trace in old.all_traces()}[STEPS[0].id] == 0.5
    query = HistoryQuery(STEPS[0].question, "")
    for kind, count in (("any", 6), ("step", 6), ("lesson", 0)):
        asked = make_buffer(index=index, filter=TraceFilter(kind=kind))
        assert len(asked.retrieve([query], top_k=9)[0]) == count
        drawn = asked.random_traces([query], [random.Random(0)])[0]
        assert (drawn is None) == (not count)
    assert coverage(old, [STEPS[0].question]) == (1, 1) and statistics(old).lessons == 0
    with pytest.raises(ValueError, match=r"was made by an earlier version .* Export it, import the file into a new collection"):
        old.insert(LESSONS)
    assert old.count() == 6
