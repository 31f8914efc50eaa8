"""Advantages of single steps, worked by hand."""

from __future__ import annotations

import math

import pytest

from rapo_rllib.objective.step_credit import returns, state_advantages, state_groups


def test_returns_by_hand() -> None:
    # 2; 1 + 2/2 = 2; 0 + 2/2 = 1
    assert returns([0.0, 1.0, 2.0], 0.5) == [1.0, 2.0, 2.0]
    assert returns([0.0, 1.0, 2.0], 1.0) == [3.0, 3.0, 2.0]
    assert returns([], 1.0) == []


def test_steps_from_one_state_are_compared_by_hand() -> None:
    # a: returns 1 (γ 0.5: 0 + 2/2), 4 and 0: mean 5/3; b: 2 alone; the third comes to a twice
    rewards, states = [[0.0, 2.0], [4.0], [0.0, 0.0]], [["a", "b"], ["a"], ["a", "a"]]
    assert state_groups(states) == [[(0, 0), (1, 0), (2, 0), (2, 1)]]
    found = state_advantages(rewards, states, 0.5, normalize_std=False)  # 1, 4, 0, 0: mean 1.25
    assert [own.tolist() for own in found] == [[-0.25, 0.0], [2.75], [-1.25, -1.25]]
    deviation = math.sqrt((0.0625 + 7.5625 + 1.5625 + 1.5625) / 3)
    assert state_advantages(rewards, states, 0.5, epsilon=1e-12)[1].tolist() == pytest.approx([2.75 / deviation])
