"""Rollouts and what they depend on: seeds, whole trajectories retrieved first, budgets of steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from scripted import OneTrace
from test_loop import QUESTIONS, make_loop

from rapo_rllib.types import TokenKind, Trajectory


def seeds_by_trajectory(seed: int | None, latency: Callable[[Any], int]) -> dict[str, int | None]:
    loop = make_loop(source=OneTrace(), latency=latency, seed=seed)
    loop.run(QUESTIONS, retrieval_prob=0.5)
    return {request.request_id: request.seed for request in loop.engine.requests}


def test_what_a_request_samples_depends_on_its_place_alone() -> None:
    even, uneven = seeds_by_trajectory(7, lambda r: 1), seeds_by_trajectory(7, lambda r: 1 + len(r.request_id) % 5)
    assert even == uneven and None not in even.values()
    assert len(set(even.values())) == len(even)  # all different
    assert seeds_by_trajectory(8, lambda r: 1) != even


def test_without_a_seed_requests_have_none_and_coins_differ() -> None:
    assert set(seeds_by_trajectory(None, lambda r: 1).values()) == {None}

    def retrieved() -> list[bool]:
        groups = make_loop(source=OneTrace(), group_size=16, num_hybrid=16, seed=None).run(QUESTIONS, retrieval_prob=0.5)
        return [bool(t.retrievals) for g in groups for t in g.trajectories]

    assert retrieved() != retrieved()


def test_a_whole_trajectory_is_retrieved_before_the_first_step() -> None:
    source = OneTrace()
    loop = make_loop(source=source, retrieval_level="trajectory")
    group = loop.run(QUESTIONS[:1], retrieval_prob=1.0)[0]
    assert {(query.question, query.history) for batch in source.batches for query in batch} == {("What is 0 + 1?", "")}
    hybrid: list[Trajectory] = group.trajectories[2:]
    assert [len(t.retrievals) for t in group.trajectories] == [0, 0, 1, 1]
    for t in hybrid:
        assert t.retrievals[0].after_step == -1 and t.retrievals[0].start == 0
        assert t.kinds[0] == TokenKind.RETRIEVED and t.steps[0].start == t.retrievals[0].stop
        assert t.end == "answer" and len(t.steps) == 2


def test_waiting_for_retrieval_is_counted_per_trajectory() -> None:
    class Slow(OneTrace):
        def retrieve(self, queries: Any, top_k: int) -> Any:
            time.sleep(0.2)
            return super().retrieve(queries, top_k)

    loop = make_loop(source=Slow(), group_size=4, num_hybrid=2)
    loop.run(QUESTIONS[:1], retrieval_prob=1.0)
    assert 0.4 <= loop.stats.retrieval_wait_s <= loop.stats.trajectory_s

    without = make_loop()
    without.run(QUESTIONS[:1])
    assert without.stats.retrieval_wait_s == 0.0 < without.stats.trajectory_s
