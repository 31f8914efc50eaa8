"""Advantages of a group: GRPO, eq. 9, eq. 10."""

import math
import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rapo_rllib.objective.advantages import (
    combined_advantages,
    has_signal,
    kind_advantages,
    outcome_advantages,
    retrieval_advantages,
)

REWARD = st.floats(-2, 2, width=32)
GROUP = st.lists(REWARD, min_size=2, max_size=16)
BOTH = (outcome_advantages, retrieval_advantages)


def doubles(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("advantages", BOTH)
def test_normalised_over_the_group(advantages) -> None:
    # mean 2; deviations -2, 0, 2; unbiased variance (4 + 0 + 4) / 2 = 4, std 2; epsilon 2 makes the divisor 4
    torch.testing.assert_close(advantages([0.0, 2.0, 4.0], epsilon=0.0), torch.tensor([-1.0, 0.0, 1.0]))
    torch.testing.assert_close(advantages([0.0, 2.0, 4.0], epsilon=2.0), torch.tensor([-0.5, 0.0, 0.5]))
    torch.testing.assert_close(advantages([0.0, 2.0, 4.0], normalize_std=False), torch.tensor([-2.0, 0.0, 2.0]))


@pytest.mark.parametrize("advantages", BOTH)
def test_one_success_of_four(advantages) -> None:
    # mean 1/4; variance (9/16 + 3 * 1/16) / 3 = 1/4, std 1/2: 3/4 / 1/2 = 1.5 and -1/4 / 1/2 = -0.5
    result = advantages([0, 1, 0, 0])
    torch.testing.assert_close(result, torch.tensor([-0.5, 1.5, -0.5, -0.5]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("advantages", BOTH)
def test_one_alone_has_nothing_to_be_compared_with(advantages) -> None:
    assert float(advantages([0.75])) == float(advantages([0.75], normalize_std=False)) == 0.0


def test_each_kind_has_a_baseline_of_its_own() -> None:
    # kind 1 earned 1, 1, 0: mean 2/3; kind 0 earned 0, 1, 0: mean 1/3; kind 2 is one alone
    rewards, kinds = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 5.0], [1, 0, 1, 0, 1, 0, 2]
    by_hand = torch.tensor([1 / 3, -1 / 3, 1 / 3, 2 / 3, -2 / 3, -1 / 3, 0.0])
    torch.testing.assert_close(kind_advantages(rewards, kinds, normalize_std=False), by_hand)
    # deviations: variance (1/9 + 1/9 + 4/9) / 2 = 1/3 of both kinds
    torch.testing.assert_close(kind_advantages(rewards, kinds), by_hand * 3**0.5, atol=1e-5, rtol=0)


def test_a_helped_success_punishes_no_unhelped_try_by_kind() -> None:
    rewards, helped = [1, 1, 1, 1, 0, 0, 0, 0], [True] * 4 + [False] * 4
    assert (outcome_advantages(rewards)[4:] < -0.9).all()
    assert kind_advantages(rewards, helped).tolist() == [0.0] * 8


def test_one_kind_is_the_group() -> None:
    assert torch.equal(kind_advantages([0.0, 1.0, 0.25], ["a"] * 3), outcome_advantages([0.0, 1.0, 0.25]))
    with pytest.raises(ValueError, match="got 2, expected 3"):
        kind_advantages([0.0, 1.0, 0.25], ["a"] * 2)


@pytest.mark.parametrize("advantages", BOTH)
def test_types_and_empty_group(advantages) -> None:
    assert advantages([0.0, 1.0]).dtype == torch.float32
    assert advantages(torch.tensor([0, 1])).dtype == torch.float32
    assert advantages(doubles([0.0, 1.0])).dtype == torch.float64
    assert advantages([]).tolist() == []


@pytest.mark.parametrize("advantages", BOTH)
def test_shape_is_checked(advantages) -> None:
    with pytest.raises(ValueError, match=r"shape \[G\], got shape \[2, 2\]"):
        advantages(torch.zeros(2, 2))


def test_combined_by_hand() -> None:
    # (1 + 0.2 * 1.5) * 2 = 2.6; (1 - 0.2 * 0.5) * -1 = -0.9; (1 + 0) * 0.5 = 0.5
    result = combined_advantages([2.0, -1.0, 0.5], [1.5, -0.5, 0.0], weight=0.2)
    torch.testing.assert_close(result, torch.tensor([2.6, -0.9, 0.5]))


def test_combined_from_rewards_by_hand() -> None:
    # R 0, 1, 0, 0: A_acc -0.5, 1.5, -0.5, -0.5. Z 0, 4, 0, 0: std 2, A_ret -0.5, 1.5, -0.5, -0.5.
    # (1 + 0.2 * 1.5) * 1.5 = 1.95; (1 - 0.1) * -0.5 = -0.45
    result = combined_advantages(outcome_advantages([0, 1, 0, 0]), retrieval_advantages([0, 4, 0, 0]), weight=0.2)
    torch.testing.assert_close(result, torch.tensor([-0.45, 1.95, -0.45, -0.45]), atol=1e-5, rtol=0)


def test_combined_needs_one_of_each() -> None:
    with pytest.raises(ValueError, match="got 3, expected 2"):
        combined_advantages([1.0, 2.0], [1.0, 2.0, 3.0], 0.2)


@pytest.mark.parametrize(
    ("rewards", "signal"), [([0, 0, 0], False), ([0.1] * 3, False), ([0, 1], True), ([1.0], False), ([], False)]
)
def test_signal(rewards: list[float], signal: bool) -> None:
    assert has_signal(rewards) is signal


@given(st.lists(REWARD, min_size=1, max_size=16))
def test_signal_is_a_nonzero_advantage(rewards: list[float]) -> None:
    assert has_signal(rewards) == bool((outcome_advantages(doubles(rewards)) != 0).any())


@given(st.floats(-5, 5), st.integers(2, 16), st.booleans(), st.data())
def test_equal_rewards_give_exactly_zero_whatever_was_retrieved(reward: float, size: int, normalize: bool, data) -> None:
    retrieval = data.draw(st.lists(REWARD, min_size=size, max_size=size))
    outcome = outcome_advantages([reward] * size, normalize)
    combined = combined_advantages(outcome, retrieval_advantages(retrieval), weight=0.2)
    assert combined.tolist() == [0.0] * size


@given(GROUP)
def test_without_retrievals_the_outcome_advantage_is_unchanged(rewards: list[float]) -> None:
    outcome = outcome_advantages(rewards)
    combined = combined_advantages(outcome, retrieval_advantages([0.0] * len(rewards)), weight=0.2)
    assert combined.tolist() == outcome.tolist()


@given(GROUP, st.randoms(use_true_random=False))
def test_order_of_the_group_does_not_matter(rewards: list[float], shuffler: random.Random) -> None:
    order = list(range(len(rewards)))
    shuffler.shuffle(order)
    z = doubles([math.sin(7 * r) for r in rewards])

    def combined(r: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return combined_advantages(outcome_advantages(r), retrieval_advantages(z), weight=0.2)

    expected = combined(doubles(rewards), z)[order]
    torch.testing.assert_close(combined(doubles(rewards)[order], z[order]), expected, atol=1e-7, rtol=1e-7)


@given(GROUP, st.floats(0.1, 100), st.floats(-10, 10))
def test_positive_scale_and_shift_of_rewards_do_not_matter(rewards: list[float], scale: float, shift: float) -> None:
    values = doubles(rewards)
    assume(float(values.std()) > 1e-2)
    moved = outcome_advantages(scale * values + shift, epsilon=0.0)
    torch.testing.assert_close(moved, outcome_advantages(values, epsilon=0.0), atol=1e-8, rtol=1e-8)


@given(GROUP)
def test_mean_zero_and_unit_deviation(rewards: list[float]) -> None:
    values = doubles(rewards)
    assume(float(values.std()) > 1e-2)
    result = outcome_advantages(values, epsilon=0.0)
    assert float(result.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(result.std()) == pytest.approx(1.0, abs=1e-9)


@given(st.integers(2, 26), st.data())
def test_retrieval_never_turns_the_sign_in_groups_up_to_26(size: int, data) -> None:
    z = doubles(data.draw(st.lists(st.floats(-10, 10), min_size=size, max_size=size)))
    combined = combined_advantages(torch.ones(size, dtype=torch.float64), retrieval_advantages(z), weight=0.2)
    assert (combined > 0).all()
