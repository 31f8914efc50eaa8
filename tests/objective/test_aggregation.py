"""Weights of tokens in the mean over a batch, eq. 11."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.loss import aggregation_weight


def test_weights_by_hand() -> None:
    # trajectory: 1 / (5 tokens * 4 trajectories * 2 questions) = 1/40; token: 1 / 100
    assert aggregation_weight(5, 4, 2, 100, "trajectory") == 0.025
    assert aggregation_weight(5, 4, 2, 100, "token") == 0.01
    # constant: 1 / (50 tokens of budget * 4 trajectories * 2 questions) = 1/400, whatever the trajectory's own length
    assert [aggregation_weight(n, 4, 2, 100, "constant", length=50) for n in (5, 20)] == [0.0025, 0.0025]


@pytest.mark.parametrize("mode", ["trajectory", "token", "constant"])
def test_trajectory_without_tokens_has_weight_zero(mode: str) -> None:
    assert aggregation_weight(0, 4, 2, 100, mode, length=50) == 0.0
    assert aggregation_weight(0, 4, 2, 0, mode, length=50) == 0.0


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=5))
def test_weights_of_a_batch_sum_to_one(groups: list[list[int]]) -> None:
    total = sum(map(sum, groups))
    for mode in ("trajectory", "token"):
        weights = [[aggregation_weight(n, len(group), len(groups), total, mode) for n in group] for group in groups]
        assert mass(groups, weights) == pytest.approx(1.0)
        assert mode == "trajectory" or len({w for row in weights for w in row}) == 1


def mass(groups: list[list[int]], weights: list[list[float]]) -> float:
    return sum(n * w for group, row in zip(groups, weights, strict=True) for n, w in zip(group, row, strict=True))


@given(st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=1, max_size=5))
def test_weights_by_the_constant_sum_to_the_mean_length_over_it(groups: list[list[int]]) -> None:
    weights = [[aggregation_weight(n, 3, len(groups), 0, "constant", length=50) for n in group] for group in groups]
    lengths = [n for group in groups for n in group]
    assert mass(groups, weights) == pytest.approx(sum(lengths) / len(lengths) / 50)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=6))
def test_every_trajectory_counts_the_same_by_trajectory(group: list[int]) -> None:
    shares = [n * aggregation_weight(n, len(group), 1, sum(group), "trajectory") for n in group]
    assert shares == pytest.approx([1 / len(group)] * len(group))
