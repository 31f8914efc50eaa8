"""Advantages of single steps, worked by hand, and whether their gradient is that of what the policy earns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch

from rapo_rllib.objective.advantages import outcome_advantages
from rapo_rllib.objective.step_credit import returns, state_advantages, state_groups, step_advantages, turn_advantages

Rewards = Sequence[Sequence[float]]
PLAIN = {"normalize_std": False}


def lists(found: list[torch.Tensor]) -> list[list[float]]:
    return [own.tolist() for own in found]


def test_returns_by_hand() -> None:
    # 2; 1 + 2/2 = 2; 0 + 2/2 = 1
    assert returns([0.0, 1.0, 2.0], 0.5) == [1.0, 2.0, 2.0]
    assert returns([0.0, 1.0, 2.0], 1.0) == [3.0, 3.0, 2.0]
    assert returns([], 1.0) == []


def test_step_advantages_by_hand() -> None:
    # returns with γ 0.5: 1, 2, 2 and 4. Step 0: mean 2.5; steps 1 and 2: 2 and the other's last, 4: mean 3
    found = step_advantages([[0.0, 1.0, 2.0], [4.0]], 0.5, **PLAIN)
    assert lists(found) == [[-1.5, -1.0, -1.0], [1.5]]
    # returns 6, 6, 5 and 4: the last step of the first, 5, against 4
    assert lists(step_advantages([[0.0, 1.0, 5.0], [4.0]], **PLAIN)) == [[1.0, 1.0, 0.5], [-1.0]]
    # normalised: two numbers that differ have ±1/√2 whatever the difference
    half = 1 / math.sqrt(2)
    assert lists(step_advantages([[0.0, 1.0, 2.0], [4.0]], 0.5, epsilon=1e-12)) == [
        pytest.approx([-half] * 3),
        pytest.approx([half]),
    ]


def test_with_a_reward_at_the_end_alone_every_step_has_the_trajectorys_advantage() -> None:
    rewards = [[0.0, 0.0, 1.0], [0.0], [0.0, 0.5]]
    whole = outcome_advantages(torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)).tolist()
    assert lists(step_advantages(rewards)) == [[a] * len(own) for a, own in zip(whole, rewards, strict=True)]


def test_turn_advantages_by_hand() -> None:
    # before their ends: 1, 2 | 3 | nothing
    rewards = [[1.0, 2.0, 9.0], [3.0, 9.0], [9.0]]
    # turn 0 is of two, mean 2: -1, 1; turn 1 of one alone: 0
    assert lists(turn_advantages(rewards, 1.0, "reached", **PLAIN)) == [[-1.0, 0.0, 0.0], [1.0, 0.0], [0.0]]
    # from turn 0 on 2, 3, 0 with γ 0.5, mean 5/3; from turn 1 on 2, 0, 0, mean 2/3; then nothing
    found = lists(turn_advantages(rewards, 0.5, "group", **PLAIN))
    assert found == [pytest.approx([1 / 3, 4 / 3, 0.0]), pytest.approx([4 / 3, -2 / 3]), pytest.approx([-5 / 3])]


def test_a_later_turn_of_those_that_reached_it_counts_for_the_turns_before() -> None:
    # turn 0: 0, 0; turn 1: 2, 4: -1, 1, of which half goes to turn 0
    found = turn_advantages([[0.0, 2.0, 0.0], [0.0, 4.0, 0.0]], 0.5, "reached", **PLAIN)
    assert lists(found) == [[-0.5, -1.0, 0.0], [0.5, 1.0, 0.0]]


P, Q, SIZE = 0.3, 0.6, 3  # of going on, and of the better turn 1 then; trajectories of a group
KINDS = {"stop": (1 - P, [0.0]), "low": (P * (1 - Q), [0.0, 1.0, 0.0]), "high": (P * Q, [0.0, 3.0, 0.0])}
# d log π / d logit of each action of a kind: of going on at step 0, of the better one at step 1
SCORES = {"stop": [(-P, 0.0)], "low": [(1 - P, 0.0), (0.0, -Q)], "high": [(1 - P, 0.0), (0.0, 1 - Q)]}
# of what is earned, P (1 + 2 Q)
TRUE = (P * (1 - P) * (1 + 2 * Q), P * 2 * Q * (1 - Q))


def expected_gradient(advantages: Callable[[Rewards], list[torch.Tensor]]) -> tuple[float, float]:
    """Mean over all groups there can be of the mean over trajectories of Σ A_k d log π; exact."""
    gradient = [0.0, 0.0]
    for kinds in itertools.product(KINDS, repeat=SIZE):
        chance = math.prod(KINDS[kind][0] for kind in kinds)
        found = advantages([KINDS[kind][1] for kind in kinds])
        for kind, own in zip(kinds, found, strict=True):
            for advantage, score in zip(own.tolist(), SCORES[kind], strict=False):  # step 2 has no choice
                for logit in (0, 1):
                    gradient[logit] += chance * advantage * score[logit] / SIZE
    return gradient[0], gradient[1]


@pytest.mark.parametrize(
    "advantages",
    [lambda rewards: step_advantages(rewards, **PLAIN), lambda rewards: turn_advantages(rewards, 1.0, "group", **PLAIN)],
)
def test_who_decides_how_many_turns_there_are_learns_what_going_on_earns(advantages) -> None:
    """The gradient is the true one, but for the factor (G - 1) / G of a mean that holds the trajectory itself."""
    factor = (SIZE - 1) / SIZE
    assert expected_gradient(advantages) == pytest.approx((factor * TRUE[0], factor * TRUE[1]))


def test_among_those_that_reached_a_turn_going_on_seems_to_earn_nothing() -> None:
    """The bias of MT-GRPO's normalisation with a free number of turns: exactly 0 in place of 0.462."""
    on, better = expected_gradient(lambda rewards: turn_advantages(rewards, 1.0, "reached", **PLAIN))
    assert on == pytest.approx(0.0, abs=1e-12) and TRUE[0] == pytest.approx(0.462)
    # step 1 itself learns the right direction, the less the fewer come there: (n - 1) / n for n that do
    assert 0 < better < TRUE[1] * (SIZE - 1) / SIZE


def test_steps_from_one_state_are_compared_by_hand() -> None:
    # a: returns 1 (γ 0.5: 0 + 2/2), 4 and 0: mean 5/3; b: 2 alone; the third comes to a twice
    rewards, states = [[0.0, 2.0], [4.0], [0.0, 0.0]], [["a", "b"], ["a"], ["a", "a"]]
    assert state_groups(states) == [[(0, 0), (1, 0), (2, 0), (2, 1)]]
    found = state_advantages(rewards, states, 0.5, **PLAIN)  # 1, 4, 0, 0: mean 1.25
    assert lists(found) == [[-0.25, 0.0], [2.75], [-1.25, -1.25]]
    deviation = math.sqrt((0.0625 + 7.5625 + 1.5625 + 1.5625) / 3)
    assert state_advantages(rewards, states, 0.5, epsilon=1e-12)[1].tolist() == pytest.approx([2.75 / deviation])
