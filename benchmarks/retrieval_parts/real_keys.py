"""The real step traces of recorded trajectories, and their keys by the product's own embedder, kept between runs.

Embedding is what takes time here (some ten texts a second and core), so finished chunks lie in the cache folder: a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

import numpy as np

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.traces.recorded import read_trace_file
from rapo_rllib.types import StepTrace

FILES = ("gsm8k_train_human_calc", "verifiers_wiki_search", "webdancer_sample", "fireact_hotpotqa_react")
CHUNK = 512


def real_traces(data: Path, limit: int | None = None) -> list[StepTrace]:
    """The different step traces of the recorded trajectories in ``data/traces``, shuffled; at most ``limit``."""
    unique: dict[str, StepTrace] = {}
    for name in FILES:
        for expert in read_trace_file(data / "traces" / f"{name}.jsonl.gz"):
            unique.update((trace.id, trace) for trace in step_traces(expert))
    traces = list(unique.values())
    random.Random(0).shuffle(traces)
    return traces[:limit]


def real_keys(traces: list[StepTrace], embedder: Embedder, cache: Path) -> tuple[np.ndarray, float | None]:
    """Keys ``[N, D]`` of the traces, and the embedder's rate in texts/s (None: everything was in the cache)."""
    cache.mkdir(parents=True, exist_ok=True)
    found, embedded, seconds = [], 0, 0.0
    for start in range(0, len(traces), CHUNK):
        chunk = traces[start : start + CHUNK]
        name = hashlib.sha256("\n".join([embedder.fingerprint, *(trace.id for trace in chunk)]).encode()).hexdigest()[:24]
        file = cache / f"keys_{name}.npy"
        if not file.exists():
            started = time.perf_counter()
            vectors = embedder.encode([(trace.question, trace.history) for trace in chunk])
            seconds, embedded = seconds + time.perf_counter() - started, embedded + len(chunk)
            np.save(file.with_suffix(".partial.npy"), vectors)
            file.with_suffix(".partial.npy").rename(file)
            print(f"embedded {start + len(chunk)} of {len(traces)} real keys, {embedded / seconds:.0f} texts/s", flush=True)
        found.append(np.load(file))
    return np.concatenate(found), embedded / seconds if embedded else None
