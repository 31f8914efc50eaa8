"""What ``verify`` finds in buffers that were damaged on purpose, and what it leaves alone."""

from dataclasses import replace

import numpy as np
import pytest
from buffer_helpers import experts

from rapo_rllib.buffer.build import ensure_built, step_traces
from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.rows import row_of
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.buffer.verifying import verify

GOOD = step_traces(next(iter(experts(1))))[0]


def write(buffer: StepTraceBuffer, trace, vector: np.ndarray) -> None:
    buffer.milvus.upsert(buffer.collection, [row_of(trace)], vector[None])


def vector_of(buffer: StepTraceBuffer, trace) -> np.ndarray:
    return buffer.embedder.encode([(trace.question, trace.history)])[0]


def test_a_good_buffer(make_buffer) -> None:
    buffer = make_buffer()
    ensure_built(buffer, lambda: experts(40))
    seen = []
    verdict = verify(buffer, LeakGuard(["Who else?"]), lambda *counts: seen.append(counts))
    assert (verdict.rows, verdict.embedded_again, verdict.findings) == (80, 64, [])
    assert verdict.worst_cosine > 0.999
    assert seen == [(80, 80)]


def test_everything_that_is_wrong_is_found(make_buffer) -> None:
    buffer = make_buffer()
    ensure_built(buffer, lambda: experts(3))
    right = vector_of(buffer, GOOD)
    write(buffer, replace(GOOD, id="0" * 32), right)
    write(buffer, replace(GOOD, id="long"), 2 * right)
    write(buffer, replace(GOOD, id="else"), -right)
    buffer.set_note("stored", {"count": 1000})
    buffer.set_note("import", {"unfinished": ["/a.jsonl"]})
    verdict = verify(buffer, LeakGuard([GOOD.question]))
    assert {finding.kind: (finding.count, finding.examples[0]) for finding in verdict.findings} == {
        "a question of the evaluation": (5, GOOD.question),
        "an id that does not belong to the content": (1, "0" * 32),
        "an import that was not finished; run it again": (1, "/a.jsonl"),
        "step traces that were stored are gone": (1, "991 of 1,000"),
        "a key that is not the embedding of its history": (2, "else: cosine -1.000"),
    }


def test_a_build_that_was_not_finished_is_told(make_buffer) -> None:
    buffer = make_buffer()
    buffer.create()
    buffer.insert([GOOD])
    assert [finding.kind for finding in verify(buffer).findings] == ["a build that was not finished; run it again"]


def test_a_buffer_that_is_not_there(make_buffer) -> None:
    with pytest.raises(ValueError, match="there is no collection 'step_traces'"):
        verify(make_buffer())
