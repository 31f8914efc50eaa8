"""Which of two steps is the buffer's: StepAgent's inverse form, as a reward of steps (docs/credit.md).

    vectors of both steps of each pair --log_odds--> a step's reward     --moved--> the discriminator of the next iteration

Shapes: ``N`` pairs, ``D`` dimensions of a vector. A difference is that of the buffer's step and the policy's own, each embedded
with the question and the history before it: what they have in common is gone. Computed in float64.
"""

from __future__ import annotations

import torch

_STEPS, _LEAST = 30, 1e-6  # of Newton's method, each halved until the loss falls; the shortest share of one


def log_odds(weights: torch.Tensor, differences: torch.Tensor, bound: float) -> torch.Tensor:
    """How much likelier the discriminator takes the policy's step for the buffer's than the buffer's own.

        D = σ(w · (x_a - x_e)),   r = log D / (1 - D) = -w · d,   d = x_e - x_a

    In [-bound, bound]; 0 for a step that is the buffer's, and for all while w = 0. StepAgent's inverse form (arXiv 2411.03817)
    is a discriminator of single steps. That it reads a pair at one state is ours: doing as the buffer does earns 0, however
    many steps it takes.

    Args:
        weights: w, float64 ``[D]``.
        differences: d, ``[N, D]``.
        bound: of the log-odds, nats.

    Returns:
        r, float64 ``[N]``.
    """
    return -(differences.double() @ weights).clamp(-bound, bound)


def moved(weights: torch.Tensor, differences: torch.Tensor, inertia: float) -> torch.Tensor:
    """The discriminator after one more iteration: logistic regression on its pairs, held to what it was.

        argmin_w  1/N Σ log(1 + exp(-w · d)) + λ/2 |w - w_before|²

    A proximal step: of earlier iterations it keeps the weights alone, and forgets them the sooner the smaller λ is.

    Args:
        weights: w before, float64 ``[D]``.
        differences: d, ``[N, D]``; without any nothing changes.
        inertia: λ, positive.

    Returns:
        w, float64 ``[D]``.
    """
    if not len(differences):
        return weights
    d, found = differences.double(), weights.clone()

    def loss(w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-(d @ w)).mean() + inertia / 2 * (w - weights).square().sum()

    for _ in range(_STEPS):
        wrong = torch.sigmoid(-(d @ found))  # [N] the chance that it gives the wrong answer
        gradient = inertia * (found - weights) - d.T @ wrong / len(d)
        curvature = (d * (wrong * (1 - wrong))[:, None]).T @ d / len(d)
        curvature.diagonal().add_(inertia)
        step, share = torch.linalg.solve(curvature, gradient), 1.0
        while share > _LEAST and loss(found - share * step) > loss(found):
            share /= 2  # where it is sure and wrong the loss is a line, and a whole step goes far beyond
        found = found - share * step
    return found
