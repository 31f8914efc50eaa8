"""Importance ratios of generated tokens (ALGORITHM section 8), and the correction for an engine that is not the trainer.

    logprobs, old_logprobs --importance_ratio--> r --shaped_ratio--> r̂ --> loss.clipped_objective

Shapes: ``N`` generated tokens. Logprobs in nats, of the distribution that was sampled from.
"""

from __future__ import annotations

import torch


def importance_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """Probability ratio of each generated token (section 8).

        r = π_θ / π_old = exp(log π_θ - log π_old)

    Args:
        logprobs: log π_θ, ``[N]``, of the policy that is trained.
        old_logprobs: log π_old, ``[N]``; no gradient flows into it.

    Returns:
        r, ``[N]``.
    """
    return (logprobs - old_logprobs.detach()).exp()


def shaped_ratio(ratio: torch.Tensor, retrieved_share: torch.Tensor | float, weight: float) -> torch.Tensor:
    """Importance ratio, raised by the share of retrieved tokens in the token's trajectory (eq. 8).

        r̂ = (1 + m · F_ret) · r

    Args:
        ratio: r, ``[N]``.
        retrieved_share: F_ret, ``[N]`` or one number: retrieved tokens / response tokens of the trajectory, in [0, 1].
        weight: m; the paper's is 0.05.

    Returns:
        r̂, ``[N]``; equal to r where nothing was retrieved.
    """
    return (1 + weight * retrieved_share) * ratio


def truncated_importance_weight(learner_logprobs: torch.Tensor, engine_logprobs: torch.Tensor, cap: float) -> torch.Tensor:
    """Weight of a token that the engine sampled, in an expectation under the learner's policy of the same weights.

        w = min(π_learner / π_engine, C)

    The engine computes other probabilities than the learner (precision, kernels). Truncation bounds the variance that the
    correction brings, at the price of a bias where it bites.

    Args:
        learner_logprobs: log π_learner, ``[N]``.
        engine_logprobs: log π_engine, ``[N]``, recorded when the token was sampled.
        cap: C, at least 1.

    Returns:
        w, ``[N]``, in [0, C], a constant: it has no gradient.
    """
    return (learner_logprobs - engine_logprobs).detach().exp().clamp_max(cap)
