"""The objective on trained tokens (algorithm.md sections 8, 11; eq. 11) as a loss, made of parts that settings name.

    LossInputs (learner: forward pass + batching) --policy_loss--> LossOutputs(loss, metrics)

    importance_level (importance.py)  token's or sequence's ratio  clip_mode (clipping.py)  how the ratio is bounded
    off_policy_shaping (clipping.py)  replaces both on tokens that another policy wrote

Token weights hold how tokens are averaged. They are known before the batch is cut into minibatches, shards and rows, so the
losses of the pieces are summed, and the cuts do not change the loss. Shapes: ``N`` trained tokens of any number of
trajectories; prompt, observation and retrieved tokens are not among them.

The choice of π_old: with the same weights, the engine that sampled computes slightly other probabilities (π_engine) than the
learner. The objective is an expectation under π_engine, so the whole weight of a token is

    π_θ / π_engine = r · π_old / π_engine,   r = π_θ / π_old

The clip bounds ``r``, how far the policy moves; ``min(π_old / π_engine, C)`` bounds the mismatch. The caller chooses:
1. First optimiser step of a batch: ``old_logprobs = logprobs.detach()``. r is 1, its gradient that of log π_θ, and the
   truncated weight corrects the mismatch, all without a second forward pass.
2. Later steps: ``old_logprobs`` computed by the learner before the first one. The same, with r free to move.
3. ``old_logprobs = rollout_logprobs``: π_old is π_engine. r holds the mismatch, the clip bounds both together, and the
   truncated weight is exactly 1. ``dual_clip`` bounds what the clip leaves open: a large r at a negative advantage.

Off-policy tokens always follow 3: π_old is the policy that wrote them, with its recorded logprobs (an expert's are 0).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rapo_rllib.objective.clipping import CLIP_MODES, clipped_objective, policy_shaping
from rapo_rllib.objective.importance import ratio_at_level, shaping_factor, truncated_importance_weight
from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.objective.loss_metrics import LossMetrics, loss_metrics
from rapo_rllib.settings import ObjectiveSettings


def aggregation_weight(
    num_tokens: int, group_size: int, num_groups: int, total_tokens: int, mode: str, length: int = 1
) -> float:
    """Compute the weight of each trained token of one trajectory in the mean over a batch.

        trajectory (eq. 11):          w = 1 / (nᵢ · G · Q)
        token (released code, DAPO):  w = 1 / Σᵢ nᵢ
        constant (Dr. GRPO):          w = 1 / (L · G · Q)

    With ``trajectory`` and ``token`` the weights of a batch sum to 1; with ``trajectory`` less, if some have no token. With
    ``constant`` they sum to the mean length as a share of L: a long trajectory counts more than a short one, but its tokens
    count the same. (arXiv 2503.20783: division by a trajectory's length favours short right answers and long wrong ones.)

    Args:
        num_tokens: nᵢ, trained tokens of the trajectory.
        group_size: G, trajectories of its group.
        num_groups: Q, groups of the batch.
        total_tokens: Σᵢ nᵢ, trained tokens of the batch.
        mode: ``loss_aggregation`` of the configuration.
        length: L, the same for all; read by ``constant`` only.

    Returns:
        w; 0 for a trajectory without trained tokens.
    """
    if num_tokens == 0:
        return 0.0
    trajectories = group_size * num_groups
    return 1 / {"trajectory": num_tokens * trajectories, "token": total_tokens, "constant": length * trajectories}[mode]


@dataclass(frozen=True)
class LossOutputs:
    """A micro-batch's part of the loss, to be summed over micro-batches, and its metrics."""

    loss: torch.Tensor  # scalar, with gradient
    metrics: LossMetrics  # detached


def kl_estimate(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Estimate the divergence ``KL(π_θ ‖ π_ref)`` from each token sampled from π_θ: unbiased, of low variance (k3; section 8).

        k₃ = exp(d) - 1 - d,   d = log π_ref - log π_θ

    Args:
        logprobs: log π_θ, ``[N]``, nats.
        reference_logprobs: log π_ref, ``[N]``, nats.

    Returns:
        ``[N]``, nats; never negative, 0 where both agree.
    """
    d = reference_logprobs - logprobs
    return torch.expm1(d) - d


def policy_loss(inputs: LossInputs, settings: ObjectiveSettings) -> LossOutputs:
    """Compute the loss, the negative of eq. 11, of one micro-batch.

        L = -Σₜ wₜ [ min(π_old / π_engine, C)ₜ · clipped(r̂ₜ, Aₜ) - β · k₃ₜ ]
        shaping after the clip:              (1 + m · F_ret) · clipped(rₜ, Aₜ) in place of clipped(r̂ₜ, Aₜ)
        an off-policy token's term, with γ:  f(r̂ₜ) · Aₜ

    Eq. 11 clips the shaped ratio, which is above 1 before the policy has moved. If ``1 + m · F_ret`` alone is above
    ``1 + ε_high``, as with GSPO's clip of 4e-4, a hybrid trajectory with A > 0 gets no gradient. Shaping after the clip raises
    value and gradient by the same factor, and the clip bounds only how far the policy moves.

    Tokens of weight 0 get a gradient of exactly 0, whatever their numbers are, NaN included.

    Args:
        inputs: wₜ is ``weights``, r̂ₜ (eq. 8) from ``logprobs``, ``old_logprobs``, ``retrieved_share``; Aₜ is ``advantages``.
        settings: C is ``importance_cap``, m ``importance_shaping_weight``, β ``kl_coeff``, γ ``off_policy_shaping``; clips,
            ``importance_level``, ``shaping_order`` and ``clip_mode`` by their names.

    Returns:
        The loss, a sum, since weights are shares of the whole batch; and its metrics.

    Raises:
        ValueError: ``kl_coeff`` is positive and there are no reference logprobs; or a part lacks an input.
    """
    if settings.kl_coeff > 0 and inputs.reference_logprobs is None:
        raise ValueError(f"kl_coeff is {settings.kl_coeff}: the loss needs reference_logprobs, got None")
    loss_mask = inputs.weights != 0
    tokens = _without_masked(inputs, loss_mask)
    ratio = ratio_at_level(settings.importance_level, tokens.logprobs, tokens.old_logprobs, tokens.trajectory_ids, loss_mask)
    factor = shaping_factor(tokens.retrieved_share, settings.importance_shaping_weight)
    truncation = _truncation(tokens, settings, loss_mask)
    shaped_before = settings.shaping_order == "before_clip"
    clip_ratio = factor * ratio if shaped_before else ratio
    objective = truncation * _bounded(clip_ratio, tokens.advantages, settings)
    if not shaped_before:
        objective = factor * objective
    kl = torch.zeros_like(tokens.logprobs)
    if tokens.reference_logprobs is not None:
        kl = kl_estimate(tokens.logprobs, tokens.reference_logprobs.detach())
    if tokens.off_policy is not None:
        if settings.off_policy_shaping is not None:
            shaping = policy_shaping(factor * ratio, settings.off_policy_shaping)
            objective = torch.where(tokens.off_policy, shaping * tokens.advantages, objective)
        kl = torch.where(tokens.off_policy, kl.new_zeros(()), kl)  # k₃ estimates nothing on tokens that π_θ did not sample
    per_token = objective - settings.kl_coeff * kl if settings.kl_coeff else objective
    metrics = loss_metrics(
        tokens, settings, loss_mask=loss_mask, ratio=ratio, clip_ratio=clip_ratio, truncation=truncation, kl=kl
    )
    return LossOutputs(-(tokens.weights * per_token).sum(), metrics)


def _without_masked(inputs: LossInputs, loss_mask: torch.Tensor) -> LossInputs:
    """Set all numbers of masked tokens to 0; a weight of 0 alone would let NaN and infinity through."""
    given = inputs.given().items()
    return replace(inputs, **{name: torch.where(loss_mask, values, values.new_zeros(())) for name, values in given})


def _truncation(tokens: LossInputs, settings: ObjectiveSettings, loss_mask: torch.Tensor) -> torch.Tensor:
    if settings.importance_cap is None or tokens.rollout_logprobs is None:
        return torch.ones_like(tokens.old_logprobs)
    whole = None if settings.importance_level == "token" else tokens.trajectory_ids
    return truncated_importance_weight(tokens.old_logprobs, tokens.rollout_logprobs, settings.importance_cap, whole, loss_mask)


def _bounded(ratio: torch.Tensor, advantages: torch.Tensor, settings: ObjectiveSettings) -> torch.Tensor:
    if settings.dual_clip is not None:
        return clipped_objective(ratio, advantages, settings.clip_low, settings.clip_high, settings.dual_clip)
    return CLIP_MODES[settings.clip_mode](ratio, advantages, settings.clip_low, settings.clip_high)
