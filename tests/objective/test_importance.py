"""Importance ratio, its shaping (eq. 8), and the truncated engine correction."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.importance import importance_ratio, shaping_factor, truncated_importance_weight

LOGPROBS = st.lists(st.floats(-8, 0, width=32), min_size=1, max_size=8)


def test_ratio_by_hand() -> None:
    new, old = torch.tensor([0.5, 0.2, 0.1]).log(), torch.tensor([0.25, 0.2, 0.4]).log()
    torch.testing.assert_close(importance_ratio(new, old), torch.tensor([2.0, 1.0, 0.25]))


def test_gradient_of_ratio_reaches_the_trained_policy_only() -> None:
    new = torch.tensor([math.log(0.5)], requires_grad=True)
    old = torch.tensor([math.log(0.25)], requires_grad=True)
    importance_ratio(new, old).sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([2.0]))  # dr / dlogprob = r
    assert old.grad is None


def test_shaping_factor_by_hand() -> None:
    # 1 + 0.05 * 0.4 = 1.02; 1 + 0.05 * 1 = 1.05; 1 without retrieved tokens, or without weight
    shares = torch.tensor([0.4, 1.0, 0.0])
    torch.testing.assert_close(shaping_factor(shares, weight=0.05), torch.tensor([1.02, 1.05, 1.0]))
    assert torch.equal(shaping_factor(shares, weight=0.0), torch.ones(3))


def test_truncated_weight_by_hand() -> None:
    learner = torch.tensor([0.3, 0.2, 0.8, 0.5]).log()
    engine = torch.tensor([0.2, 0.4, 0.1, 0.5]).log()
    # 1.5; 0.5; 8 -> 2; 1
    torch.testing.assert_close(truncated_importance_weight(learner, engine, cap=2.0), torch.tensor([1.5, 0.5, 2.0, 1.0]))


def test_truncated_weight_has_no_gradient_and_survives_overflow() -> None:
    learner = torch.tensor([-1.0], requires_grad=True)
    weight = truncated_importance_weight(learner, torch.tensor([-1000.0]), cap=2.0)
    assert weight.tolist() == [2.0]
    assert not weight.requires_grad


@given(LOGPROBS, st.floats(1, 10))
def test_truncated_weight_is_one_where_both_agree_and_never_above_the_cap(logprobs: list[float], cap: float) -> None:
    values = torch.tensor(logprobs)
    assert truncated_importance_weight(values, values, cap).tolist() == [1.0] * len(values)
    assert float(truncated_importance_weight(values, values.flip(0), cap).max()) <= cap * (1 + 1e-6)


def test_truncated_weight_times_ratio_is_the_ratio_to_the_engine() -> None:
    new, old, engine = (torch.tensor([p]).log() for p in (0.30, 0.25, 0.20))
    product = truncated_importance_weight(old, engine, cap=2.0) * importance_ratio(new, old)
    assert float(product) == pytest.approx(0.30 / 0.20, abs=1e-6)
