"""StepAgent's two forms, worked by hand: a preference as advantages, and a discriminator of two steps."""

from __future__ import annotations

import math

import pytest
import torch

from rapo_rllib.objective.discriminator import log_odds, moved
from rapo_rllib.objective.preference import preference_advantages, preference_margins

# pair 1: the buffer's step has two tokens, the policy's own one; pair 2: one each; the first and the last token are in none
PAIRS = torch.tensor([0, -1, 1, 1, -2, 2, 0])
LOG_RATIOS = torch.tensor([9.0, 0.5, 1.0, 1.5, 0.25, -0.75, float("nan")])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_margins_by_hand() -> None:
    # pair 1: (1 + 1.5) - 0.5 = 2; pair 2: -0.75 - 0.25 = -1; times β = 0.5
    assert preference_margins(PAIRS, LOG_RATIOS, 0.5).tolist() == [0.0, 1.0, -0.5]
    assert preference_margins(PAIRS[:0], LOG_RATIOS[:0], 0.5).tolist() == [0.0]


def test_advantages_by_hand() -> None:
    found = preference_advantages(PAIRS, torch.tensor([0.0, 1.0, -0.5], dtype=torch.float64)).tolist()
    first, second = sigmoid(-1.0), sigmoid(0.5)
    assert found == pytest.approx([0.0, -first, first, first, -second, second, 0.0])
    # before anything is learned every pair counts half
    assert preference_advantages(PAIRS, torch.zeros(3)).tolist() == [0.0, -0.5, 0.5, 0.5, -0.5, 0.5, 0.0]


def test_the_policy_gradient_of_the_advantages_is_that_of_dpo() -> None:
    torch.manual_seed(0)
    beta, reference = 0.3, -torch.rand(7, dtype=torch.float64)
    logprobs = (-2 * torch.rand(7, dtype=torch.float64)).requires_grad_()

    def step(pair: int) -> torch.Tensor:
        there = pair == PAIRS
        return (logprobs - reference)[there].sum()

    dpo = -sum(torch.nn.functional.logsigmoid(beta * (step(p) - step(-p))) for p in (1, 2)) / beta
    (wanted,) = torch.autograd.grad(dpo, logprobs)
    margins = preference_margins(PAIRS, (logprobs - reference).detach(), beta)
    (found,) = torch.autograd.grad(-(preference_advantages(PAIRS, margins) * logprobs).sum(), logprobs)
    torch.testing.assert_close(found, wanted, atol=1e-7, rtol=1e-6)


def test_log_odds_by_hand() -> None:
    # d = x_e - x_a: what the discriminator knows the buffer by is missing in the first step, and too much of it in the second
    w, d = torch.tensor([2.0, 0.0], dtype=torch.float64), torch.tensor([[1.5, 7.0], [-0.5, 7.0], [0.0, 0.0], [9.0, 0.0]])
    assert log_odds(w, d, 5.0).tolist() == [-3.0, 1.0, 0.0, -5.0]


def test_a_moved_discriminator_by_hand() -> None:
    # one pair, d = 1: the minimum of log(1 + exp(-w)) + λ/2 w² has λ w = σ(-w); with λ = σ(-1) that is w = 1
    found = moved(torch.zeros(1, dtype=torch.float64), torch.ones(1, 1), sigmoid(-1.0))
    assert found.tolist() == pytest.approx([1.0], abs=1e-9)
    # from w = 1 it moves by σ(-w) / λ: w = 1 + u with λ u = σ(-1 - u); with λ = σ(-2) it is u = 1
    assert moved(found, torch.ones(1, 1), sigmoid(-2.0)).tolist() == pytest.approx([2.0], abs=1e-9)


@pytest.mark.parametrize(("before", "inertia"), [(-10.0, sigmoid(-1.0) / 11), (-60.0, 1e-3), (-60.0, 1e-5)])
def test_a_discriminator_that_is_sure_and_wrong_learns(before: float, inertia: float) -> None:
    (found,) = moved(torch.tensor([before], dtype=torch.float64), torch.ones(1, 1), inertia).tolist()
    assert inertia * (found - before) == pytest.approx(sigmoid(-found), rel=1e-6)  # the minimum, whatever the start
    assert found > (0 if inertia == 1e-3 else 0.9)


def test_a_discriminator_without_pairs_stays_and_pairs_alike_pull_nowhere() -> None:
    w = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert moved(w, torch.zeros(0, 2), 0.01) is w
    torch.testing.assert_close(moved(w, torch.zeros(3, 2), 0.01), w)


def test_it_tells_what_the_buffer_does_from_what_the_policy_does() -> None:
    torch.manual_seed(0)
    # unit vectors, as of an embedder; the buffer's lie about one direction, the policy's about another
    centres = torch.nn.functional.normalize(torch.randn(2, 32), dim=1)
    theirs, own = (torch.nn.functional.normalize(centre + 0.1 * torch.randn(64, 32), dim=1) for centre in centres)
    w = moved(torch.zeros(32, dtype=torch.float64), (theirs - own)[:32], 0.01)
    assert (log_odds(w, (theirs - own)[32:], 5.0) < -1).all()  # of pairs that it has not seen
    assert (log_odds(w, (own - theirs)[32:], 5.0) > 1).all()
