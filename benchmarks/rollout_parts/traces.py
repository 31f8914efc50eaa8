"""Step-Trace Buffers of any size in Milvus Lite, filled without embedding every key.

Questions, histories and steps are real (the word problems' solver). The keys of the first ``NUM_EMBEDDED`` are embedded; every
further key is one of those vectors plus noise, normalised: what a search costs depends on how many there are, not on what they
mean. Retrieved texts are real, only less fitting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.buffer.rows import row_of
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.envs.word_problems.env import WordProblems
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import StepTrace

if TYPE_CHECKING:
    from rollout_parts.bench import Bench

NUM_EMBEDDED = 1000
NOISE = 0.3  # length of the noise beside a vector of length 1: cosine 0.96 to the original
BATCH = 5000
FILL_TIMEOUT_S = 600.0  # of writing a batch, which is larger than the product's
NOTE = "benchmark"


def open_buffer(bench: Bench, folder: Path, count: int) -> tuple[StepTraceBuffer, float]:
    """The buffer with ``count`` step traces and the seconds it took to fill; one that is complete is used again."""
    settings = BufferSettings(uri=str(folder / f"traces_{count}.db"))
    buffer = StepTraceBuffer(settings)
    started = time.monotonic()
    if not (buffer.exists() and (buffer.note(NOTE) or {}).get("count") == count):
        filling = StepTraceBuffer(replace(settings, timeout_s=FILL_TIMEOUT_S))
        filling.drop()
        filling.create()
        _fill(filling, bench, count)
        filling.fit_index()
        filling.set_note(NOTE, {"count": count})
        filling.close()
        buffer.close()  # so that Lite flushes: a folder that is opened again is what a training reads
        time.sleep(5.0)
        buffer.count()
    buffer.prepare()
    return buffer, time.monotonic() - started


def _fill(buffer: StepTraceBuffer, bench: Bench, count: int) -> None:
    rng = np.random.default_rng(bench.options.seed)
    traces = unique_traces(bench, count)
    embedded = _embedded(buffer.embedder, list(islice(unique_traces(bench, count), NUM_EMBEDDED)))
    stored = 0
    while batch := list(islice(traces, BATCH)):
        vectors = embedded[: len(batch)] if stored == 0 else np.zeros((0, embedded.shape[1]), dtype=np.float32)
        vectors = np.concatenate([vectors, perturbed(embedded, len(batch) - len(vectors), rng)])
        buffer.milvus.upsert(buffer.collection, [row_of(trace) for trace in batch], vectors)
        stored += len(batch)


def unique_traces(bench: Bench, count: int) -> Iterator[StepTrace]:
    """``count`` different step traces of the solver, in the style of the main job."""
    seen: set[str] = set()
    for expert in WordProblems.expert_trajectories({**bench.env_config, "num_train": count, "steps": [1, 3]}):
        for trace in step_traces(expert):
            if trace.id not in seen and len(seen) < count:
                seen.add(trace.id)
                yield trace


def perturbed(vectors: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` normalised copies of random rows of ``vectors [N, D]``, each with noise of its own: ``[count, D]``."""
    chosen = vectors[rng.integers(0, len(vectors), count)]
    noise = rng.standard_normal(chosen.shape, dtype=np.float32) * (NOISE / vectors.shape[1] ** 0.5)
    noisy = chosen + noise
    return noisy / np.linalg.norm(noisy, axis=1, keepdims=True)


def _embedded(embedder: Embedder, traces: list[StepTrace]) -> np.ndarray:
    return embedder.encode([(trace.question, trace.history) for trace in traces])
