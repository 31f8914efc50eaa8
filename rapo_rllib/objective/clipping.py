"""Bounded terms of eq. 11 for each token (algorithm.md sections 8, 11).

    r̂, A --CLIP_MODES[clip_mode]--> objective of each token, to be maximised
    ratio to another policy, which wrote the token --policy_shaping--> f; the objective is f · A

Shapes: ``N`` tokens.
"""

from __future__ import annotations

import torch


def clipped_objective(
    shaped_ratio: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """Compute the clipped objective of each token (inner term of eq. 11): GRPO's; with ε_high > ε_low, DAPO's clip-higher.

        min(r̂ A, clip(r̂, 1 - ε_low, 1 + ε_high) A);   with dual clip, where A < 0: not below c A

    Args:
        shaped_ratio: r̂, ``[N]``.
        advantages: A, ``[N]``.
        clip_low: ε_low.
        clip_high: ε_high.
        dual_clip: c, above ``1 + ε_high``; None: no dual clip.

    Returns:
        ``[N]``.
    """
    clipped = shaped_ratio.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.minimum(shaped_ratio * advantages, clipped * advantages)
    if dual_clip is None:
        return objective
    return torch.where(advantages < 0, torch.maximum(objective, dual_clip * advantages), objective)


def gradient_preserving_objective(
    shaped_ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """Compute the objective clipped in the forward pass only: GPPO (arXiv 2508.07629).

        min(r̂ A, b · r̂ / sg(r̂) · A),   b = clip(sg(r̂), 1 - ε_low, 1 + ε_high)

    The value is that of :func:`clipped_objective`. Where the hard clip makes the gradient 0, it is ``b A ∇log π`` here: bounded
    like the value, and not 0. ``sg`` stops the gradient.

    Args:
        shaped_ratio: r̂, ``[N]``.
        advantages: A, ``[N]``.
        clip_low: ε_low.
        clip_high: ε_high.

    Returns:
        ``[N]``.
    """
    constant = shaped_ratio.detach()
    bound = constant.clamp(1 - clip_low, 1 + clip_high)
    tiny = torch.finfo(constant.dtype).tiny  # a ratio of 0 by underflow has the gradient 0
    preserved = bound + bound * (shaped_ratio - constant) / constant.clamp_min(tiny)
    return torch.minimum(shaped_ratio * advantages, preserved * advantages)


CLIP_MODES = {"hard": clipped_objective, "gradient_preserving": gradient_preserving_objective}


def policy_shaping(ratio: torch.Tensor, gamma: float) -> torch.Tensor:
    """Compute the shaped ratio of off-policy tokens: LUFFY (arXiv 2504.14945).

        f(r) = r / (r + γ),   f'(r) = γ / (r + γ)²

    It has no clip. The gradient ``f'(r) r A ∇log π`` is largest at ``r = γ``: it lifts tokens that the policy thinks unlikely,
    for which the gradient of the plain ratio, ``r A ∇log π``, would vanish.

    Args:
        ratio: r = π_θ / π_φ, ``[N]``. An expert's tokens have no recorded probabilities: as in the paper, π_φ is 1 for them, so
            that r is π_θ itself.
        gamma: γ, positive; the paper's is 0.1.

    Returns:
        f(r), ``[N]``, in [0, 1).
    """
    return ratio / (ratio + gamma)
