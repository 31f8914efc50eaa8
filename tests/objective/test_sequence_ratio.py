"""Ratios of whole responses: GSPO's, with each token's own gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.importance import (
    ratio_at_level,
    sequence_ratio,
    trajectory_mean,
    truncated_importance_weight,
)

# responses of 2 tokens (ratios 4 and 1), 1 token (ratio 1/2) and 2 tokens (ratios 2 and 8), one after another and mixed
IDS = torch.tensor([0, 2, 0, 1, 2])
NEW = torch.tensor([0.8, 0.2, 0.3, 0.2, 0.8], dtype=torch.float64).log()
OLD = torch.tensor([0.2, 0.1, 0.3, 0.4, 0.1], dtype=torch.float64).log()
BY_HAND = [2.0, 4.0, 2.0, 0.5, 4.0]  # sqrt(4 * 1), sqrt(2 * 8), 1/2


def test_mean_by_hand() -> None:
    values = torch.tensor([1.0, 3.0, 5.0, 7.0])
    assert trajectory_mean(values, torch.tensor([0, 0, 1, 1])).tolist() == [2.0, 2.0, 6.0, 6.0]
    counted = torch.tensor([True, False, False, False])
    assert trajectory_mean(values, torch.tensor([0, 0, 1, 1]), counted).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_ratio_by_hand() -> None:
    torch.testing.assert_close(sequence_ratio(NEW, OLD, IDS), torch.tensor(BY_HAND, dtype=torch.float64))
    counted = torch.tensor([True, True, True, True, False])  # the last token is masked: 2 alone
    assert sequence_ratio(NEW, OLD, IDS, counted).tolist() == pytest.approx([2.0, 2.0, 2.0, 0.5, 2.0])


def test_gradients_by_hand() -> None:
    # objective: sum of ratio times (1, 1, 3, 1, 1). A token gets s times its own factor
    factors = torch.tensor([1.0, 1.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    logprobs, old = NEW.clone().requires_grad_(), OLD.clone().requires_grad_()
    (sequence_ratio(logprobs, old, IDS) * factors).sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([2.0, 4.0, 6.0, 0.5, 4.0])
    assert old.grad is None


@given(st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.integers(0, 2)), min_size=3, max_size=9))
def test_with_one_factor_per_response_the_gradient_is_that_of_gspo(rows: list[tuple[float, float, int]]) -> None:
    new, old = (torch.tensor(column, dtype=torch.float64) for column in list(zip(*rows, strict=True))[:2])
    ids = torch.tensor([row[2] for row in rows])
    logprobs, whole = new.clone().requires_grad_(), new.clone().requires_grad_()
    (sequence_ratio(logprobs, old, ids) * (ids + 1)).sum().backward()
    (trajectory_mean(whole - old, ids).exp() * (ids + 1)).sum().backward()  # the ratio of the whole, through all its tokens
    torch.testing.assert_close(logprobs.grad, whole.grad)


def test_truncated_weight_of_a_response() -> None:
    # the same ratios as weights: 2, 4, 1/2, cut at 3; none has a gradient
    logprobs = NEW.clone().requires_grad_()
    weight = truncated_importance_weight(logprobs, OLD, 3.0, IDS)
    assert weight.tolist() == pytest.approx([2.0, 3.0, 2.0, 0.5, 3.0])
    assert not weight.requires_grad


def test_levels_by_name() -> None:
    assert ratio_at_level("token", NEW, OLD).tolist() == pytest.approx([4.0, 2.0, 1.0, 0.5, 8.0])
    assert ratio_at_level("sequence", NEW, OLD, IDS).tolist() == pytest.approx(BY_HAND)
