"""What the rollout benchmark compares: equal work on both sides, and latencies as they are announced. Nothing is timed here."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
from rollout_parts.lockstep import run_lockstep
from rollout_parts.plan import Plan
from rollout_parts.report import fields
from rollout_parts.scripted import SlowToolEnv, trajectory_and_step
from rollout_parts.slow_tools import check_equal
from rollout_parts.traces import perturbed

from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question

PLAN = Plan(seed=3, step_tokens=(2, 9), calls=(1, 4))
QUESTIONS = [Question(id=f"q{i}", text=f"What is {i} + 1?") for i in range(6)]


class ByteTokenizer:
    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True, split_special_tokens: bool = False) -> list[int]:
        return list(text.encode())


class PlannedEngine:
    """Writes as many letters as the plan says, in one poll."""

    policy_version = 0

    def __init__(self) -> None:
        self.waiting: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> None:
        self.waiting.append(request)

    def poll(self) -> list[Completion]:
        requests, self.waiting = self.waiting, []
        return [self._complete(request) for request in requests]

    def _complete(self, request: GenerationRequest) -> Completion:
        n = PLAN.tokens(*trajectory_and_step(request.request_id))
        return Completion(request.request_id, [97] * n, [0.0] * n, [0.0] * n, "a" * n, "", "stop", 0)


def no_wait(seconds: float) -> None:
    pass


def make_env() -> SlowToolEnv:
    return SlowToolEnv(PLAN, no_wait)


def make_chat() -> ChatProtocol:
    return ChatProtocol(ByteTokenizer(), ProtocolSettings(system_prompt=""))


def make_loop() -> Any:
    settings = RolloutSettings(group_size=1, num_hybrid=0, max_response_tokens=2000)
    return RolloutLoop(PlannedEngine(), make_chat(), EnvPool(make_env, "answer"), settings)  # type: ignore[arg-type]


def test_latencies_have_the_announced_median_and_99th_percentile() -> None:
    drawn = sorted(Plan(latency_median_s=0.3, latency_p99_s=5.0).latency_s("q", call) for call in range(20_000))
    assert statistics.median(drawn) == pytest.approx(0.3, rel=0.05)
    assert drawn[int(0.99 * len(drawn))] == pytest.approx(5.0, rel=0.15)


def test_a_plan_depends_on_its_seed_the_trajectory_and_the_counter_alone() -> None:
    again = Plan(seed=3, step_tokens=(2, 9), calls=(1, 4))
    assert [PLAN.tokens("q0/0", step) for step in range(5)] == [again.tokens("q0/0", step) for step in range(5)]
    assert len({PLAN.latency_s(name, call) for name in ("q0/0", "q1/0") for call in range(2)}) == 4
    assert PLAN.all_tokens("q0/0") == sum(PLAN.tokens("q0/0", step) for step in range(PLAN.num_calls("q0/0") + 1))


def test_lockstep_and_our_schedule_do_the_same_work() -> None:
    loop = make_loop()
    groups = loop.run(QUESTIONS)
    loop.close()
    lockstep = run_lockstep(PlannedEngine(), make_chat(), make_env, QUESTIONS, 100)  # type: ignore[arg-type]
    check_equal(groups, lockstep)
    assert lockstep.generated_tokens == {q.id: PLAN.all_tokens(f"{q.id}/0") for q in QUESTIONS}
    assert lockstep.rounds == 1 + max(PLAN.num_calls(f"{q.id}/0") for q in QUESTIONS)
    assert sum(loop.stats.tool_calls.values()) == sum(PLAN.num_calls(f"{q.id}/0") for q in QUESTIONS)


def test_unequal_work_is_refused() -> None:
    loop = make_loop()
    groups = loop.run(QUESTIONS)
    loop.close()
    lockstep = run_lockstep(PlannedEngine(), make_chat(), make_env, QUESTIONS, 100)  # type: ignore[arg-type]
    lockstep.generated_tokens["q2"] += 1
    with pytest.raises(AssertionError, match="q2"):
        check_equal(groups, lockstep)


def test_copies_of_vectors_are_normalised_and_near_their_originals() -> None:
    originals = np.eye(384, dtype=np.float32)[:5]
    copies = perturbed(originals, 200, np.random.default_rng(0))
    assert np.linalg.norm(copies, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert (copies @ originals.T).max(axis=1).min() > 0.9


def test_parts_that_did_not_run_are_null() -> None:
    found = fields({"a": {"ratio": 0.96}, "c": {"runs": [{"step_traces": 10_000, "share_of_trajectory_time": 0.03}]}})
    assert found == {
        "ratio_vs_offline": 0.96,
        "ratio_vs_lockstep": None,
        "ratio_vs_lockstep_with_model": None,
        "retrieval_share_10k": 0.03,
        "retrieval_share_170k": None,
        "hybrid_vs_on_policy": None,
    }
