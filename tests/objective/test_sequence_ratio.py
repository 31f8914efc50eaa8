"""Ratios of whole responses: GSPO and GSPO-token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.importance import (
    ratio_at_level,
    sequence_ratio,
    sequence_token_ratio,
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


@pytest.mark.parametrize("function", [sequence_ratio, sequence_token_ratio])
def test_ratio_by_hand(function) -> None:
    torch.testing.assert_close(function(NEW, OLD, IDS), torch.tensor(BY_HAND, dtype=torch.float64))
    counted = torch.tensor([True, True, True, True, False])  # the last token is masked: 2 alone
    assert function(NEW, OLD, IDS, counted).tolist() == pytest.approx([2.0, 2.0, 2.0, 0.5, 2.0])


def test_gradients_by_hand() -> None:
    # objective: sum of ratio times (1, 1, 3, 1, 1). GSPO: d s / d logprob = s / n, and each of the n tokens carries s, so that
    # a token gets s / n * (sum of its response's factors): 2/2 * 4 = 4, 4/2 * 2 = 4, 0.5. GSPO-token: s times its own factor
    factors = torch.tensor([1.0, 1.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    expected = {sequence_ratio: [4.0, 4.0, 4.0, 0.5, 4.0], sequence_token_ratio: [2.0, 4.0, 6.0, 0.5, 4.0]}
    for function, gradient in expected.items():
        logprobs, old = NEW.clone().requires_grad_(), OLD.clone().requires_grad_()
        (function(logprobs, old, IDS) * factors).sum().backward()
        assert logprobs.grad.tolist() == pytest.approx(gradient)
        assert old.grad is None


@given(st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.integers(0, 2)), min_size=3, max_size=9))
def test_with_one_factor_per_response_both_have_the_same_gradient(rows: list[tuple[float, float, int]]) -> None:
    new, old = (torch.tensor(column, dtype=torch.float64) for column in list(zip(*rows, strict=True))[:2])
    ids = torch.tensor([row[2] for row in rows])
    gradients = []
    for function in (sequence_ratio, sequence_token_ratio):
        logprobs = new.clone().requires_grad_()
        (function(logprobs, old, ids) * (ids + 1)).sum().backward()
        gradients.append(logprobs.grad)
    torch.testing.assert_close(*gradients)


def test_truncated_weight_of_a_response() -> None:
    # the same ratios as weights: 2, 4, 1/2, cut at 3; none has a gradient
    logprobs = NEW.clone().requires_grad_()
    weight = truncated_importance_weight(logprobs, OLD, 3.0, IDS)
    assert weight.tolist() == pytest.approx([2.0, 3.0, 2.0, 0.5, 3.0])
    assert not weight.requires_grad


def test_levels_by_name() -> None:
    assert ratio_at_level("token", NEW, OLD).tolist() == pytest.approx([4.0, 2.0, 1.0, 0.5, 8.0])
    for level in ("sequence", "sequence_token"):
        assert ratio_at_level(level, NEW, OLD, IDS).tolist() == pytest.approx(BY_HAND)
        with pytest.raises(ValueError, match=f"importance_level '{level}' needs trajectory_ids, got None"):
            ratio_at_level(level, NEW, OLD)
