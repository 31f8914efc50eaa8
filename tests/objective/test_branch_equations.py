"""ARPO's forks and shared advantages, worked by hand."""

from __future__ import annotations

import math

import pytest

from rapo_rllib.objective.advantages import shared_token_advantages
from rapo_rllib.objective.entropy import branch_probability, normalized_entropy_change


def test_the_change_is_measured_in_units_of_the_uniform_distribution() -> None:
    # (3 - 1) nats of log 8 = 2.0794 nats
    assert normalized_entropy_change(3.0, 1.0, 8) == pytest.approx(2 / 2.0794415)
    assert normalized_entropy_change(1.0, 3.0, 8) == pytest.approx(-2 / 2.0794415)
    assert normalized_entropy_change(math.log(50), 0.0, 50) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "base", "weight", "expected"),
    [(0.0, 0.5, 0.2, 0.5), (0.5, 0.5, 0.2, 0.6), (-0.5, 0.5, 0.2, 0.4), (1.0, 0.5, 2.0, 1.0), (-1.0, 0.5, 2.0, 0.0)],
)
def test_branch_probability(change: float, base: float, weight: float, expected: float) -> None:
    assert branch_probability(change, base, weight) == pytest.approx(expected)


def test_shared_tokens_get_the_mean_of_those_that_share_them() -> None:
    # 0 writes 4 tokens; 1 leaves it after 2; 2 leaves 1 after 3; 3 stands alone
    segments = [[(0, 0)], [(0, 0), (2, 1)], [(0, 0), (2, 1), (3, 2)], []]
    found = shared_token_advantages([[3.0] * 4, [0.0] * 4, [-6.0] * 5, [5.0] * 2], segments)
    assert [values.tolist() for values in found] == [
        [-1.0, -1.0, 3.0, 3.0],  # (3 + 0 - 6) / 3 on the first two
        [-1.0, -1.0, -3.0, 0.0],  # (0 - 6) / 2 on the third
        [-1.0, -1.0, -3.0, -6.0, -6.0],
        [5.0, 5.0],
    ]


def test_a_branch_whose_origin_is_missing_keeps_its_own() -> None:
    """The origin failed and was left out of the group."""
    assert shared_token_advantages([[2.0] * 3], [[(0, 0), (2, 1)]])[0].tolist() == [2.0, 2.0, 2.0]


def test_shared_tokens_of_several_steps_each_get_the_mean_of_their_own_step() -> None:
    # the second took over two tokens, of which the first has advantage 1 here and 3 there, the second 2 and 0
    found = shared_token_advantages([[1.0, 2.0, 4.0], [3.0, 0.0, 5.0]], [[(0, 0)], [(0, 0), (2, 1)]])
    assert [values.tolist() for values in found] == [[2.0, 1.0, 4.0], [2.0, 1.0, 5.0]]
