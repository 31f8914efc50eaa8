"""Entropy of tokens and steps, eq. 2."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.entropy import step_entropy, token_entropy

LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=12)


def test_token_entropy_of_known_distributions() -> None:
    logits = torch.tensor(
        [
            [0.0, 0.0, 0.0, 0.0],  # uniform over 4: log 4
            [math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)],  # 0.5*1 + 0.25*2 + 2*0.125*3 = 1.75 bit
            [math.log(3.0), 0.0, -math.inf, -math.inf],  # 3/4, 1/4: 3/4 log(4/3) + 1/4 log 4 = 0.21576 + 0.34657 = 0.56234
            [7.0, -math.inf, -math.inf, -math.inf],  # certain: 0
        ]
    )
    expected = torch.tensor([math.log(4), 1.75 * math.log(2), 0.562335, 0.0])
    torch.testing.assert_close(token_entropy(logits), expected, atol=1e-6, rtol=0)


def test_token_entropy_of_tempered_distribution() -> None:
    # logits (2 log 3, 0) at temperature 2 are (log 3, 0): probabilities 3/4, 1/4.
    entropy = token_entropy(torch.tensor([2 * math.log(3.0), 0.0]), temperature=2.0)
    assert float(entropy) == pytest.approx(0.562335, abs=1e-6)


def test_token_entropy_is_computed_in_float32() -> None:
    logits = torch.randn(3, 5, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    entropy = token_entropy(logits)
    assert entropy.shape == (3, 5)
    assert entropy.dtype == torch.float32
    p = torch.softmax(logits.double(), -1)
    torch.testing.assert_close(entropy.double(), -(p * p.log()).sum(-1), atol=1e-5, rtol=0)


def test_token_entropy_leaves_the_logits_alone() -> None:
    logits = torch.tensor([1.0, 2.0])
    token_entropy(logits, temperature=0.5)
    assert logits.tolist() == [1.0, 2.0]


def test_gradient_of_token_entropy_is_finite_at_impossible_tokens() -> None:
    logits = torch.tensor([math.log(3.0), 0.0, -math.inf], requires_grad=True)
    token_entropy(logits).backward()
    # dH/dz_j = -p_j (log p_j + H): -3/4 (log 3/4 + 0.562335) = -0.205990, and its negative for the other; 0 at p = 0.
    torch.testing.assert_close(logits.grad, torch.tensor([-0.205990, 0.205990, 0.0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_token_entropy_refuses_temperature(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive"):
        token_entropy(torch.zeros(3), temperature)


@given(LOGITS, st.floats(-30, 30, width=32))
def test_token_entropy_is_bounded_and_blind_to_a_shift(logits: list[float], shift: float) -> None:
    entropy = float(token_entropy(torch.tensor(logits)))
    assert -1e-5 <= entropy <= math.log(len(logits)) + 1e-5
    assert float(token_entropy(torch.tensor(logits) + shift)) == pytest.approx(entropy, abs=1e-3)


@given(LOGITS)
def test_token_entropy_is_blind_to_order(logits: list[float]) -> None:
    backwards = token_entropy(torch.tensor(logits[::-1]))
    assert float(backwards) == pytest.approx(float(token_entropy(torch.tensor(logits))), abs=1e-5)


def test_step_entropy_is_the_mean_over_tokens() -> None:
    assert step_entropy([1.0, 2.0, 6.0]) == 3.0
    assert step_entropy([0.25]) == 0.25


def test_step_without_tokens_has_no_entropy() -> None:
    with pytest.raises(ValueError, match="without generated tokens"):
        step_entropy([])
