"""What the retrieval benchmark compares: samples as announced, and sides that find the same. Nothing is timed here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from retrieval import headline
from retrieval_parts.real_keys import CHUNK, real_keys, real_traces
from retrieval_parts.sides import RawFaiss, Searched
from retrieval_parts.stored import exact_similarity, extended, fill
from retrieval_parts.timing import timed

from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import StepTrace


def some_traces(count: int) -> list[StepTrace]:
    return [StepTrace(f"t{i}", f"What is {i} + 1?", "", f"<answer>{i + 1}</answer>", 1.0) for i in range(count)]


def some_keys(count: int, dim: int = 384) -> np.ndarray:
    keys = np.random.default_rng(0).standard_normal((count, dim)).astype(np.float32)
    return keys / np.linalg.norm(keys, axis=1, keepdims=True)


def test_a_sample_holds_real_keys_and_others_between_them() -> None:
    traces, keys = some_traces(50), some_keys(50)
    sample = extended(traces, keys, size=300, num_queries=10)
    assert (len(sample.traces), sample.num_real, len(sample.queries)) == (300, 40, 10)
    assert len({trace.id for trace in sample.traces}) == 300
    assert {trace.id for trace in sample.asked}.isdisjoint(trace.id for trace in sample.traces)
    assert np.array_equal(sample.keys[:40], keys[10:]) and np.linalg.norm(sample.keys, axis=1) == pytest.approx(1.0, abs=1e-5)
    by_id = {trace.id: number for number, trace in enumerate(traces[10:])}
    nearness = [sample.keys[n] @ sample.keys[by_id[sample.traces[n].id.split("-")[0]]] for n in range(40, 300)]
    assert min(nearness) > 0.5  # a copy belongs to the trace whose key is near
    small = extended(traces, keys, size=20, num_queries=10)
    assert small.num_real == len(small.traces) == 20


def test_traces_are_real_and_in_the_same_order_every_time(shared_data: Path) -> None:
    traces = real_traces(shared_data, 2 * CHUNK)
    assert traces == real_traces(shared_data, CHUNK * 2) and len({trace.id for trace in traces}) == 2 * CHUNK
    assert len({trace.source for trace in traces}) > 1


def test_embedded_keys_are_kept(tmp_path: Path) -> None:
    traces, embedder = some_traces(5), Embedder("all-minilm-l6-v2")
    keys, rate = real_keys(traces, embedder, tmp_path)
    again, nothing = real_keys(traces, embedder, tmp_path)
    assert np.array_equal(keys, again) and rate is not None and rate > 0 and nothing is None


@pytest.mark.usefixtures("ray_session")
def test_all_sides_find_the_nearest(tmp_path: Path) -> None:
    settings = BufferSettings(uri=str(tmp_path / "steps.db"))
    buffer, sample = StepTraceBuffer(settings), extended(some_traces(60), some_keys(60), 100, 20)
    try:
        assert fill(buffer, sample) is not None and fill(buffer, sample) is None
        buffer.prepare()
        exact = exact_similarity(sample)
        missed = exact + np.where(np.arange(len(exact)) < 6, 0.1, 0.0)  # of the first six there is something nearer
        sides = ((Searched(settings), 2, exact, 1.0), (RawFaiss.written(sample, tmp_path), 1, missed, 0.6))
        for side, processes, nearest, recall in sides:
            figures = timed(side, sample, nearest, processes, queries=15)
            assert figures["recall_at_1"] == recall and figures["p50_ms"] <= figures["p99_ms"] and figures["queries_per_s"] > 0
    finally:
        buffer.close()


def test_headline() -> None:
    side = {"4": {"p50_ms": 0.6, "recall_at_1": 0.99}, "1": {"p50_ms": 9.0, "recall_at_1": 0.0}}
    figures = {"170000": {"ours": side, "faiss": {"4": {"p50_ms": 0.4}}}, "10000": {"ours": {}}}
    assert headline(figures) == {"ours_170k_4proc_ms": 0.6, "recall_at_1": 0.99, "ours_vs_faiss": 1.5}
    assert headline({"10000": {"ours": side}}) == {}
