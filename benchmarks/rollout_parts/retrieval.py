"""(c): how much of a trajectory's life is spent waiting for step traces, by size of the buffer, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.types import TokenKind
from rollout_parts.bench import MAX_MODEL_LEN, Bench, median
from rollout_parts.hybrid import job_settings, make_retriever, session_query
from rollout_parts.plan import Plan
from rollout_parts.scripted import SlowToolEnv
from rollout_parts.traces import open_buffer


def _at_once(seconds: float) -> None:
    """A tool as fast as a calculator."""


class Stopwatch:
    """Seconds of every call of a method, which it replaces for a while."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def watching(self, owner: Any, method: str, name: str) -> Iterator[None]:
        """Within the block every ``owner.method(...)`` is timed under ``name``."""
        inner: Callable[..., Any] = getattr(owner, method)
        taken = self.seconds.setdefault(name, [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.monotonic()
            try:
                return inner(*args, **kwargs)
            finally:
                taken.append(time.monotonic() - started)

        setattr(owner, method, timed)
        try:
            yield
        finally:
            delattr(owner, method)


def all_sizes(
    bench: Bench, folder: Path, sizes: Sequence[int], questions: int, plan: Plan, retrieval_prob: float
) -> dict[str, list[dict[str, Any]]]:
    """Part (c) for every size of the buffer."""
    runs = []
    for size in sizes:
        buffer, fill_s = open_buffer(bench, folder, size)
        runs.append({**retrieval_share(bench, buffer, questions, plan, retrieval_prob), "fill_s": fill_s})
        buffer.close()
    return {"runs": runs}


def retrieval_share(bench: Bench, buffer: StepTraceBuffer, questions: int, plan: Plan, retrieval_prob: float) -> dict[str, Any]:
    """Part (c): one rollout with ``buffer``."""
    retriever = make_retriever(buffer)
    retriever([session_query(bench)])  # connects, and loads the embedder
    watch, bench.engine.plan = Stopwatch(), plan
    bench.engine.forget_prefixes()
    settings = replace(job_settings(bench, bench.config["num_hybrid"]), max_response_tokens=MAX_MODEL_LEN // 2)
    loop = bench.loop(lambda: SlowToolEnv(plan, wait=_at_once), settings, retriever)
    with (
        watch.watching(buffer, "retrieve", "busy"),
        watch.watching(buffer.embedder, "encode", "embedding"),
        watch.watching(buffer._nearest, "find", "search"),
    ):
        groups = loop.run(bench.questions(questions), retrieval_prob=retrieval_prob)
    loop.close()
    bench.engine.plan = None
    hybrid_lives = sum(t.seconds for group in groups for t in group.trajectories if t.hybrid)
    busy, embedding, search = (sum(watch.seconds[name]) for name in ("busy", "embedding", "search"))
    queries, waited = loop.stats.retrieval_queries, loop.stats.retrieval_wait_s
    per_query = {name: 1e3 * seconds / max(queries, 1) for name, seconds in (("embedding", embedding), ("search", search))}
    return {
        "step_traces": buffer.count(),
        "index": buffer.milvus.index_of(buffer.collection),
        "trajectories": sum(len(group.trajectories) for group in groups),
        "queries": queries,
        "requests": len(watch.seconds["busy"]),
        "seconds": loop.stats.seconds,
        "generated_tokens": sum(t.num_tokens(TokenKind.POLICY) for group in groups for t in group.trajectories),
        "share_of_trajectory_time": waited / loop.stats.trajectory_s,
        "share_of_hybrid_trajectory_time": waited / hybrid_lives,
        "retrieval_busy_share_of_run": busy / loop.stats.seconds,
        "waited_ms_per_query": 1e3 * waited / max(queries, 1),
        "ms_per_query": {**per_query, "rest": 1e3 * (busy - embedding - search) / max(queries, 1)},
        "ms_per_request": {name: 1e3 * median(taken) for name, taken in watch.seconds.items() if taken},
    }
