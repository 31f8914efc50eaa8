"""ARPO's adaptive rollout against a scripted engine: who forks, what branches share, and that the budget is kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scripted import CalculatorEnv, OneTrace, ScriptedEngine, calls, scripted_loop, solve
from test_loop import QUESTIONS

from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import BranchingSettings
from rapo_rllib.types import TokenKind, Trajectory

Entropy = Callable[[str], float]  # everything so far -> entropy of the next step


class MoodyEngine(ScriptedEngine):
    """Writes what the script says, as sure of it as ``entropy`` says."""

    def __init__(self, script: Callable[[str], str], entropy: Entropy) -> None:
        super().__init__(script)
        self.entropy = entropy

    def _complete(self, request: GenerationRequest) -> Completion:
        done = super()._complete(request)
        entropies = [self.entropy(bytes(request.token_ids).decode())] * len(done.token_ids)
        return Completion(**{**vars(done), "entropies": entropies})


def unsure_after_a_result(so_far: str) -> float:
    return 2.0 if "<result>" in so_far.rsplit("What is", 1)[1] else 1.0


def surer_after_a_result(so_far: str) -> float:
    return 3.0 - unsure_after_a_result(so_far)


def make_loop(
    entropy: Entropy, script: Callable[[str], str] = solve, source: Any = None, branching: Any = None, **settings: Any
) -> RolloutLoop:
    forks = BranchingSettings(**(branching or {}))
    return scripted_loop(MoodyEngine(script, entropy), source=source, branching=forks, **{"group_size": 8, **settings})


def origins(trajectories: Sequence[Trajectory]) -> Counter[int]:
    """How many trajectories have how many segments."""
    return Counter(len(t.segments) for t in trajectories)


@pytest.mark.parametrize(
    ("entropy", "settings", "forks", "refilled"),
    [
        (unsure_after_a_result, {}, 4, 0),  # four from the start, a branch of each: the budget is spent
        (surer_after_a_result, {}, 0, 4),  # fresh trajectories fill the budget
        # entropies 1 -> 2 nats, V = 256: dH = 1 / log 256 = 0.1803, P = 0.5 + 0.2 * 0.1803 = 0.53607
        (unsure_after_a_result, {"branching": {"threshold": 0.536}}, 4, 0),
        (unsure_after_a_result, {"branching": {"threshold": 0.5361}}, 0, 4),
        (lambda so_far: 1.0, {"branching": {"threshold": 0.5}}, 0, 4),  # P is 0.5 itself, and no more
        # half of a group begins, and at least one
        *[(surer_after_a_result, {"group_size": n}, 0, n - start) for n, start in ((1, 1), (2, 1), (3, 1), (4, 2), (9, 4))],
    ],
)
def test_a_rise_of_the_entropy_over_the_threshold_forks(
    entropy: Entropy, settings: dict[str, Any], forks: int, refilled: int
) -> None:
    loop = make_loop(entropy, **settings)
    (group,) = loop.run(QUESTIONS[:1])
    size = settings.get("group_size", 8)
    assert group.rewards == [1.0] * size and {t.end for t in group.trajectories} == {"answer"}
    assert origins(group.trajectories) == Counter({1: size - forks, 2: forks})
    assert (loop.stats.forks, loop.stats.refilled) == (forks, refilled)


def test_a_branch_shares_the_tokens_up_to_the_tool_result_and_no_more() -> None:
    group = make_loop(unsure_after_a_result).run(QUESTIONS[:1])[0]
    for branch in group.trajectories[4:]:
        (_, origin), (start, own) = branch.segments
        root = group.trajectories[origin]
        assert group.trajectories[own] is branch and start == branch.own_start > 0
        for name in ("token_ids", "kinds", "logprobs", "entropies"):
            assert getattr(branch, name)[:start] == getattr(root, name)[:start]
        shared = "<python>0 + 1</python>\n<result>\n1\n</result>\n"
        assert bytes(branch.token_ids[:start]).decode() == shared and branch.text.startswith(shared)
        assert root.kinds[start - 1] == TokenKind.OBSERVATION and root.kinds[start] == TokenKind.POLICY
        assert branch.num_generated == root.num_tokens(TokenKind.POLICY) - root.steps[0].stop


def test_who_ends_first_leaves_the_others_room_to_fork() -> None:
    loop = make_loop(unsure_after_a_result)
    loop.engine.latency = lambda request: 1 if request.request_id.startswith("0/q0/0") else 200  # of the first and its branches
    poll = loop.engine.poll
    loop.engine.poll = lambda: (time.sleep(0.001), poll())[1]
    loop.run(QUESTIONS[:1])
    assert (loop.stats.forks, loop.stats.refilled) == (4, 0)


def test_the_coin_forks_with_probability_p() -> None:
    forks = {}
    for base in (0.0, 0.5, 1.0):
        loop = make_loop(lambda so_far: 1.0, group_size=200, branching={"rule": "coin", "base_prob": base, "initial": 100})
        loop.run(QUESTIONS[:1])
        forks[base] = loop.stats.forks
    assert forks[0.0] == 0 and forks[1.0] == 100 and 30 < forks[0.5] < 70


def test_branches_fork_again_and_a_fork_may_go_more_than_two_ways() -> None:
    loop = make_loop(
        lambda so_far: 1.0 + so_far.rsplit("What is", 1)[1].count("<result>"),
        calls(2),
        branching={"initial": 1, "branches": 3},
        group_size=9,
    )
    group = loop.run(QUESTIONS[:1])[0]
    assert len(group.trajectories) == 9 and loop.stats.forks == 8
    assert origins(group.trajectories)[1] == 1 and origins(group.trajectories)[3] >= 1
    names = [request.request_id for request in loop.engine.requests]
    assert len(set(names)) == len(names)
    assert group.rewards == [1.0] * 9


def test_every_call_and_token_is_counted_once() -> None:
    loop = make_loop(unsure_after_a_result)
    group = loop.run(QUESTIONS[:1])[0]
    assert loop.stats.tool_calls == {"python": 4}
    generated = sum(t.num_generated for t in group.trajectories)
    assert generated == sum(t.kinds[t.own_start :].count(TokenKind.POLICY) for t in group.trajectories)
    assert generated < sum(t.num_tokens(TokenKind.POLICY) for t in group.trajectories)


def test_retrieved_traces_are_inherited_and_counted_once() -> None:
    source = OneTrace()
    loop = make_loop(unsure_after_a_result, source=source, num_hybrid=8)
    group = loop.run(QUESTIONS[:1], retrieval_prob=1.0)[0]
    assert [len(t.retrievals) for t in group.trajectories] == [1] * 8
    assert [len(t.own_retrievals) for t in group.trajectories] == [1] * 4 + [0] * 4
    assert loop.stats.retrieval_queries == 4
    assert all(t.retrieved_share > 0 for t in group.trajectories)


@pytest.mark.parametrize("entropy", [unsure_after_a_result, surer_after_a_result, lambda so_far: 1.0])
@pytest.mark.parametrize("initial", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("num_hybrid", range(9))
def test_the_number_of_hybrids_is_exact(num_hybrid: int, initial: int, entropy: Entropy) -> None:
    branching = {"initial": initial, "branches": 3}
    loop = make_loop(entropy, calls(2), OneTrace(), branching, num_hybrid=num_hybrid)
    (group,) = loop.run(QUESTIONS[:1], retrieval_prob=1.0)
    assert len(group.trajectories) == 8
    assert sum(t.hybrid for t in group.trajectories) == num_hybrid
    assert all(bool(t.retrievals) == t.hybrid for t in group.trajectories)  # nobody else was shown a trace
    assert loop.stats.forks + loop.stats.refilled == 8 - initial
    first = [t.hybrid for t in group.trajectories[:initial]]
    assert first == sorted(first)
    if initial > 1 and 0 < num_hybrid < 8:
        assert set(first) == {False, True}  # both kinds from the start
    if initial == 1:
        assert first == [num_hybrid > 4]  # of the kind that most are to be


@pytest.mark.parametrize(
    ("entropy", "num_hybrid", "hybrid", "forks"),
    [
        (surer_after_a_result, 4, [False, False, True, True] * 2, 0),  # half of those that start together
        (unsure_after_a_result, 1, [False, False, False, True] + [False] * 4, 3),  # one branch for each of the three that may
    ],
)
def test_each_kind_forks_within_its_own_part_of_the_budget(
    entropy: Entropy, num_hybrid: int, hybrid: list[bool], forks: int
) -> None:
    loop = make_loop(entropy, source=OneTrace(), num_hybrid=num_hybrid)
    (group,) = loop.run(QUESTIONS[:1], retrieval_prob=1.0)
    assert [t.hybrid for t in group.trajectories] == hybrid
    assert (loop.stats.forks, loop.stats.refilled) == (forks, 4 - forks)


def test_evaluation_does_not_branch() -> None:
    loop = make_loop(unsure_after_a_result)
    group = loop.run(QUESTIONS[:1], greedy=True, group_size=1)[0]
    assert len(group.trajectories) == 1 and loop.stats.forks == 0


def test_an_environment_that_cannot_be_copied_costs_the_branch_only() -> None:
    class Uncopied(CalculatorEnv):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("a socket cannot be copied")

    loop = make_loop(unsure_after_a_result)
    loop.envs = EnvPool(Uncopied, "answer")
    group = loop.run(QUESTIONS[:1])[0]
    assert group.rewards == [1.0] * 8 and loop.stats.forks == 0 and loop.stats.refilled == 4
