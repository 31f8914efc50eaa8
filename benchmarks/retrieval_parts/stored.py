"""The buffers that are searched: the same traces and keys in Milvus Lite and on a Milvus server.

The first keys are real ones. Every further one lies between two of them, with noise, and belongs to a copy of the nearer one's
trace under another id: so texts have real lengths, and keys fill the part of the sphere that real ones do. The queries are real
keys that are not stored.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rapo_rllib.buffer.rows import row_of
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.types import StepTrace

NOISE = 0.2  # length of the noise beside a key of length 1
BATCH = 2000
NOTE = "benchmark"


@dataclass(frozen=True)
class Sample:
    """Traces ``[N]`` with their keys ``[N, D]``, and queries ``[Q, D]`` with the traces that they are the keys of."""

    traces: Sequence[StepTrace]
    keys: np.ndarray
    queries: np.ndarray
    asked: Sequence[StepTrace]
    num_real: int


def extended(traces: Sequence[StepTrace], keys: np.ndarray, size: int, num_queries: int) -> Sample:
    """``size`` traces out of the real ones less ``num_queries``, which become the queries."""
    stored, real = list(traces[num_queries:])[:size], keys[num_queries:][:size]
    rng = np.random.default_rng(0)
    origin, other = rng.integers(0, len(real), (2, size - len(real)))
    share = rng.uniform(0.5, 1.0, (len(origin), 1)).astype(np.float32)  # how much of the nearer one
    noise = rng.standard_normal((len(origin), keys.shape[1]), dtype=np.float32) * (NOISE / keys.shape[1] ** 0.5)
    further = share * real[origin] + (1 - share) * real[other] + noise
    all_keys = np.concatenate([real, further / np.linalg.norm(further, axis=1, keepdims=True)])
    stored += [replace(traces[num_queries + n], id=f"{traces[num_queries + n].id}-{i}") for i, n in enumerate(origin)]
    return Sample(stored, all_keys, keys[:num_queries], list(traces[:num_queries]), len(real))


def fill(buffer: StepTraceBuffer, sample: Sample) -> float | None:
    """Store a sample, unless it is there; returns rows/s without embedding, or None."""
    wanted = {"traces": len(sample.traces), "real": sample.num_real}
    if buffer.exists() and buffer.note(NOTE) == wanted:
        return None
    buffer.drop()
    buffer.create()
    started = time.perf_counter()
    for start in range(0, len(sample.traces), BATCH):
        rows = [row_of(trace) for trace in sample.traces[start : start + BATCH]]
        buffer.milvus.upsert(buffer.collection, rows, sample.keys[start : start + BATCH])
    rate = len(sample.traces) / (time.perf_counter() - started)
    buffer.milvus.flush(buffer.collection)
    buffer.set_note(NOTE, wanted)
    return rate


def exact_similarity(sample: Sample) -> np.ndarray:
    """Cosine of each query and its nearest key: ``[Q]``."""
    return np.array([(sample.keys @ query).max() for query in sample.queries])
