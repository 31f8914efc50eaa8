"""Importance ratios (algorithm.md sections 8, 11), and the correction for an engine that is not the trainer.

    logprobs, old_logprobs --ratio_at_level--> r --shaping_factor--> r̂ --> clipping    (or: r --> clipping --shaping_factor-->)

Shapes: ``N`` trained tokens of any number of trajectories. Logprobs in nats, of the distribution that was sampled from.
"""

from __future__ import annotations

import torch


def importance_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """Compute the probability ratio of each generated token (section 8).

        r = π_θ / π_old = exp(log π_θ - log π_old)

    Args:
        logprobs: log π_θ, ``[N]``, of the policy that is trained.
        old_logprobs: log π_old, ``[N]``; no gradient flows into it.

    Returns:
        r, ``[N]``.
    """
    return (logprobs - old_logprobs.detach()).exp()


def trajectory_mean(values: torch.Tensor, trajectory_ids: torch.Tensor, loss_mask: torch.Tensor | None = None) -> torch.Tensor:
    """Compute the mean over the tokens of each trajectory, and give it to every token of the trajectory.

    Example: values ``[1, 3, 5]`` of trajectories ``[0, 0, 1]`` give ``[2, 2, 5]``.

    Args:
        values: ``[N]``.
        trajectory_ids: ``[N]`` integers in [0, N).
        loss_mask: ``[N]`` bool, tokens that are in the mean; None: all.

    Returns:
        ``[N]``; 0 for a trajectory without tokens in the mean.
    """
    ones = torch.ones_like(values) if loss_mask is None else loss_mask.to(values.dtype)
    sums, counts = torch.zeros_like(values), torch.zeros_like(values)  # N slots: at least as many as trajectories
    sums = sums.index_add(0, trajectory_ids, values * ones)
    counts = counts.index_add(0, trajectory_ids, ones)
    return (sums / counts.clamp_min(1))[trajectory_ids]


def sequence_ratio(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    trajectory_ids: torch.Tensor,
    loss_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute a whole response's length-normalised ratio, with each token's own gradient: GSPO (arXiv 2507.18071).

        sᵢ = (π_θ(yᵢ) / π_old(yᵢ))^(1/|yᵢ|) = exp(1/|yᵢ| Σₜ (log π_θ - log π_old))
        sᵢ,ₜ = sg(sᵢ) · π_θ(yᵢ,ₜ) / sg(π_θ(yᵢ,ₜ))

    This is the paper's GSPO-token. With one advantage for the whole response, value and gradient of the objective are GSPO's;
    with advantages that differ between tokens, each token is trained by its own. ``sg`` stops the gradient.

    Args:
        logprobs: log π_θ, ``[N]``.
        old_logprobs: log π_old, ``[N]``; no gradient flows into it.
        trajectory_ids: i of each token, ``[N]``; all trained tokens of a response must be among the N.
        loss_mask: ``[N]`` bool, tokens of yᵢ; None: all.

    Returns:
        sᵢ,ₜ, ``[N]``.
    """
    whole = trajectory_mean((logprobs - old_logprobs).detach(), trajectory_ids, loss_mask).exp()
    return whole * (logprobs - logprobs.detach()).exp()


def ratio_at_level(
    level: str,
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    trajectory_ids: torch.Tensor | None = None,
    loss_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the ratio of each token, or of its whole response, by the name of the level.

    Args:
        level: ``importance_level`` of the configuration.
        logprobs: log π_θ, ``[N]``.
        old_logprobs: log π_old, ``[N]``.
        trajectory_ids: ``[N]``; may be None at level ``token``.
        loss_mask: ``[N]`` bool; None: all.

    Returns:
        r, ``[N]``.

    Raises:
        ValueError: ``level`` needs ``trajectory_ids``, and they are None.
    """
    if level == "token":
        return importance_ratio(logprobs, old_logprobs)
    if trajectory_ids is None:
        raise ValueError(f"importance_level {level!r} needs trajectory_ids, got None")
    return sequence_ratio(logprobs, old_logprobs, trajectory_ids, loss_mask)


def shaping_factor(retrieved_share: torch.Tensor | float, weight: float) -> torch.Tensor | float:
    """Compute the factor by which the share of retrieved tokens in a token's trajectory raises its importance ratio (eq. 8).

        r̂ = (1 + m · F_ret) · r

    Args:
        retrieved_share: F_ret, ``[N]`` or one number: retrieved tokens / response tokens of the trajectory, in [0, 1].
        weight: m; the paper's is 0.05.

    Returns:
        1 + m · F_ret, ``[N]`` or one number; 1 where nothing was retrieved.
    """
    return 1 + weight * retrieved_share


def truncated_importance_weight(
    learner_logprobs: torch.Tensor,
    engine_logprobs: torch.Tensor,
    cap: float,
    trajectory_ids: torch.Tensor | None = None,
    loss_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the weight that corrects a token for being sampled by the engine, and not by the learner with the same weights.

        w = min(π_learner / π_engine, C);   with trajectory_ids: w = min(sᵢ, C), where sᵢ is GSPO's ratio

    The engine computes other probabilities than the learner (precision, kernels). Truncation bounds the variance that the
    correction brings, at the price of a bias wherever it cuts.

    Args:
        learner_logprobs: log π_learner, ``[N]``.
        engine_logprobs: log π_engine, ``[N]``, recorded when the token was sampled.
        cap: C, at least 1.
        trajectory_ids: ``[N]``: a weight for each response, as at levels with one ratio for it; None: a weight for each token.
        loss_mask: ``[N]`` bool, tokens of the response; None: all.

    Returns:
        w, ``[N]``, in [0, C], a constant: it has no gradient.
    """
    excess = (learner_logprobs - engine_logprobs).detach()
    if trajectory_ids is not None:
        excess = trajectory_mean(excess, trajectory_ids, loss_mask)
    return excess.exp().clamp_max(cap)
