"""DAPO's overlong punishment, and LUFFY's policy shaping."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.advantages import overlong_punishment
from rapo_rllib.objective.clipping import policy_shaping


@pytest.mark.parametrize(
    ("length", "punishment"),
    [
        # DAPO's own numbers: 20,480 tokens, the last 4,096 of them are punished
        (0, 0.0),
        (16_384, 0.0),
        (17_408, -0.25),  # (16384 - 17408) / 4096
        (18_432, -0.5),
        (20_480, -1.0),
        (30_000, -1.0),
    ],
)
def test_punishment_by_hand(length: int, punishment: float) -> None:
    assert overlong_punishment(length, 20_480, 4_096) == punishment


def test_the_shortest_buffers() -> None:
    assert [overlong_punishment(length, 10, 1) for length in (9, 10, 11)] == [0.0, -1.0, -1.0]
    assert [overlong_punishment(length, 10, 0.5) for length in (9, 10)] == [0.0, -1.0]


def test_no_buffer_no_punishment() -> None:
    assert overlong_punishment(30_000, 20_480, 0) == 0.0


@given(st.integers(0, 200), st.integers(1, 100), st.floats(0.01, 1))
def test_punishment_is_bounded_and_falls_with_length(length: int, limit: int, share: float) -> None:
    here, longer = (overlong_punishment(n, limit, share * limit) for n in (length, length + 1))
    assert -1 <= longer <= here <= 0


@pytest.mark.parametrize(
    ("probability", "shaped", "slope"),
    [
        # gamma 0.1: p / (p + 0.1); slope with respect to log p is p * 0.1 / (p + 0.1)^2
        (0.1, 0.5, 0.25),
        (0.9, 0.9, 0.09),
        (0.025, 0.2, 0.16),
        (0.0, 0.0, 0.0),
    ],
)
def test_policy_shaping_by_hand(probability: float, shaped: float, slope: float) -> None:
    logprob = torch.tensor([probability], dtype=torch.float64).log().requires_grad_()
    result = policy_shaping(logprob.exp(), 0.1)
    result.sum().backward()
    assert float(result) == pytest.approx(shaped)
    assert float(logprob.grad) == pytest.approx(slope)


@given(st.floats(1e-6, 1), st.floats(0.01, 1))
def test_unlikely_tokens_gain_most_at_gamma(probability: float, gamma: float) -> None:
    def slope(p: float) -> float:
        logprob = torch.tensor([math.log(p)], dtype=torch.float64).requires_grad_()
        (gradient,) = torch.autograd.grad(policy_shaping(logprob.exp(), gamma).sum(), logprob)
        return float(gradient)

    assert slope(probability) <= slope(gamma) + 1e-12
    assert slope(gamma) == pytest.approx(0.25)
