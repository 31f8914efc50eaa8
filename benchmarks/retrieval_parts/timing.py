"""Queries from several processes at once: latency of each, throughput of all, and what was found."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import ray

from retrieval_parts.sides import Ours, Side
from retrieval_parts.stored import Sample

WARM_QUERIES = 10


def timed(side: Side, sample: Sample, exact: np.ndarray, processes: int, queries: int) -> dict[str, float]:
    """p50 and p99 of a query in ms, queries/s of all processes, recall@1; each process asks ``queries`` queries."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    asked = [np.arange(first * queries, (first + 1) * queries) % len(sample.queries) for first in range(processes)]
    with context.Pool(processes, initializer=_remember, initargs=(barrier, ray.get_runtime_context().gcs_address)) as pool:
        arguments = [(side, sample.queries[chosen], [sample.asked[n] for n in chosen]) for chosen in asked]
        results = pool.starmap(_ask, arguments, chunksize=1)
        pool.close()
        pool.join()  # so that each process ends by itself and gives back what its libraries hold
    seconds = np.concatenate([result["seconds"] for result in results])
    found = np.concatenate([result["found"] for result in results])
    took = max(result["end"] for result in results) - min(result["start"] for result in results)
    return {
        "p50_ms": round(1e3 * float(np.median(seconds)), 3),
        "p99_ms": round(1e3 * float(np.quantile(seconds, 0.99)), 3),
        "queries_per_s": round(len(seconds) / took, 1),
        "recall_at_1": round(float(np.mean(found > exact[np.concatenate(asked)] - tolerance(side))), 4),
        "own_memory_mib": round(float(np.mean([result["uss"] for result in results])) / 2**20, 1),
    }


def tolerance(side: Side) -> float:
    """Bound how much less similar a find may be than the exact one: rounding; with its own embedding, the batch's too."""
    return 2e-3 if isinstance(side, Ours) else 1e-5


_barrier: list[Barrier] = []


def _remember(barrier: Barrier, address: str) -> None:
    os.environ["RAY_ADDRESS"] = address  # of this benchmark's Ray: there may be others on the machine
    _barrier.append(barrier)


def _ask(side: Side, queries: np.ndarray, asked: list) -> dict[str, Any]:
    import psutil
    import torch  # noqa: F401  (its memory is not what is measured)

    before = psutil.Process(os.getpid()).memory_full_info().uss
    answer = side.open()
    for number in range(min(WARM_QUERIES, len(queries))):
        answer(queries[number : number + 1], asked[number])
    _barrier[0].wait()
    start, seconds, found = time.time(), [], []
    for number in range(len(queries)):
        began = time.perf_counter()
        found.append(answer(queries[number : number + 1], asked[number]))
        seconds.append(time.perf_counter() - began)
    end = time.time()
    _barrier[0].wait()
    uss = psutil.Process(os.getpid()).memory_full_info().uss - before
    return {"seconds": seconds, "found": found, "start": start, "end": end, "uss": uss}
