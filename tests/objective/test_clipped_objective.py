"""Per-token terms of eq. 11: the clipped objective and the KL estimate."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.clipping import clipped_objective, gradient_preserving_objective
from rapo_rllib.objective.loss import kl_estimate


@pytest.mark.parametrize(
    ("dual_clip", "ratio", "advantage", "objective", "slope"),
    [
        # clip range [0.8, 1.28]; slope is d objective / d ratio
        (None, 1.0, 2.0, 2.0, 2.0),
        (None, 1.5, 2.0, 2.56, 0.0),  # min(3, 1.28 * 2)
        (None, 0.5, 2.0, 1.0, 2.0),  # min(1, 0.8 * 2): below the range nothing is clipped at A > 0
        (None, 1.5, -2.0, -3.0, -2.0),  # min(-3, -2.56)
        (None, 0.5, -2.0, -1.6, 0.0),  # min(-1, -1.6)
        (None, 4.0, -2.0, -8.0, -2.0),
        (None, 4.0, 0.0, 0.0, 0.0),
        (3.0, 4.0, -2.0, -6.0, 0.0),  # max(-8, 3 * -2)
        (3.0, 2.0, -2.0, -4.0, -2.0),  # -4 is above -6
        (3.0, 4.0, 2.0, 2.56, 0.0),  # positive advantages are none of its business
        (3.0, 4.0, 0.5, 0.64, 0.0),
        (3.0, 0.5, -2.0, -1.6, 0.0),
    ],
)
def test_clipped_objective_by_hand(
    dual_clip: float | None, ratio: float, advantage: float, objective: float, slope: float
) -> None:
    shaped = torch.tensor([ratio], requires_grad=True)
    result = clipped_objective(shaped, torch.tensor([advantage]), clip_low=0.2, clip_high=0.28, dual_clip=dual_clip)
    result.sum().backward()
    torch.testing.assert_close(result, torch.tensor([objective]))
    torch.testing.assert_close(shaped.grad, torch.tensor([slope]))


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        # the values of hard clipping; slope is d objective / d log ratio
        (1.0, 2.0, 2.0, 2.0),
        (1.5, 2.0, 2.56, 2.56),  # clipped: 1.28 * 2, where hard clipping has slope 0
        (0.5, 2.0, 1.0, 1.0),  # below the range at A > 0 nothing is clipped: r A
        (0.5, -2.0, -1.6, -1.6),  # clipped: 0.8 * -2, where hard clipping has slope 0
        (1.5, -2.0, -3.0, -3.0),
        (0.0, -2.0, -1.6, 0.0),  # a ratio that underflowed
    ],
)
def test_gradient_preserving_by_hand(ratio: float, advantage: float, objective: float, slope: float) -> None:
    log_ratio = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
    result = gradient_preserving_objective(log_ratio.exp(), torch.tensor([advantage]), clip_low=0.2, clip_high=0.28)
    result.sum().backward()
    assert float(result) == pytest.approx(objective)
    assert float(log_ratio.grad) == pytest.approx(slope)


@given(st.floats(0, 10), st.floats(-5, 5))
def test_gradient_preserving_has_the_value_of_hard_clipping(ratio: float, advantage: float) -> None:
    r, a = torch.tensor([ratio], dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    hard, preserved = clipped_objective(r, a, 0.2, 0.28), gradient_preserving_objective(r, a, 0.2, 0.28)
    assert float(preserved) == pytest.approx(float(hard), abs=1e-12)


@given(st.floats(0, 10), st.floats(-5, 5))
def test_clipping_only_ever_lowers_the_objective_and_dual_clip_bounds_it(ratio: float, advantage: float) -> None:
    r, a = torch.tensor([ratio], dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    clipped = float(clipped_objective(r, a, 0.2, 0.28))
    assert clipped <= ratio * advantage
    dual = float(clipped_objective(r, a, 0.2, 0.28, dual_clip=3.0))
    assert dual >= clipped
    assert dual >= -3 * abs(advantage)


def test_kl_estimate_by_hand() -> None:
    # d = log(ref / p): log 2 -> 2 - 1 - 0.693147 = 0.306853; -log 2 -> 0.5 - 1 + 0.693147 = 0.193147; 0 -> 0
    logprobs, reference = torch.tensor([0.2, 0.4, 0.3]).log(), torch.tensor([0.4, 0.2, 0.3]).log()
    torch.testing.assert_close(kl_estimate(logprobs, reference), torch.tensor([0.306853, 0.193147, 0.0]), atol=1e-6, rtol=0)


def test_kl_estimate_is_unbiased() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = 0.7 * math.log(7 / 3) + 0.2 * math.log(2 / 3) + 0.1 * math.log(1 / 4)
    assert float((p * kl_estimate(p.log(), q.log())).sum()) == pytest.approx(exact, abs=1e-6)


@given(st.floats(-20, 0, width=32), st.floats(-20, 0, width=32))
def test_kl_estimate_is_never_negative(logprob: float, reference: float) -> None:
    assert float(kl_estimate(torch.tensor(logprob), torch.tensor(reference))) >= 0
    assert float(kl_estimate(torch.tensor(logprob), torch.tensor(logprob))) == 0
