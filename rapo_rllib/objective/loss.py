"""The RAPO objective on generated tokens (ALGORITHM section 8, eq. 11), as a loss.

    LossInputs (learner: forward pass + batching) --policy_loss--> LossOutputs(loss, metrics)

Shapes: ``N`` generated tokens of any number of trajectories; prompt, observation and retrieved tokens are not among them.

Which policy is π_old: the engine that sampled computes slightly other probabilities (π_engine) than the learner does with the
same weights. The objective is an expectation under what was sampled from, so the whole weight of a token is

    π_θ / π_engine = r · π_old / π_engine,   r = π_θ / π_old

The clip bounds ``r``, how far the policy moves; ``min(π_old / π_engine, C)`` bounds the mismatch. The caller chooses:
1. First optimiser step of a batch: ``old_logprobs = logprobs.detach()``. r is 1, its gradient that of log π_θ, and the
   truncated weight corrects the mismatch, all without a second forward pass.
2. Later steps: ``old_logprobs`` computed by the learner before the first one. The same, with r free to move.
3. ``old_logprobs = rollout_logprobs``: π_old is π_engine. r holds the mismatch, the clip bounds both together, and the
   truncated weight is exactly 1. What clip leaves open, a large r at a negative advantage, ``dual_clip`` bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch

from rapo_rllib.objective.importance import importance_ratio, shaped_ratio, truncated_importance_weight
from rapo_rllib.objective.loss_metrics import LossMetrics
from rapo_rllib.settings import ObjectiveSettings


@dataclass(frozen=True)
class LossInputs:
    """Per-token tensors ``[N]`` of one micro-batch. Raises ``ValueError`` if their shapes differ.

    Example, two tokens of one trajectory with advantage 1.5 that retrieved nothing: ``advantages=[1.5, 1.5]``,
    ``retrieved_share=[0, 0]``, ``weights=[0.5, 0.5]``.
    """

    logprobs: torch.Tensor  # log π_θ, nats; the only one with a gradient
    old_logprobs: torch.Tensor  # log π_old, nats; see the top of this file
    advantages: torch.Tensor  # A (eq. 10)
    retrieved_share: torch.Tensor  # F_ret of the token's trajectory
    weights: torch.Tensor  # share in the mean over the batch (aggregation_weight); 0: masked
    rollout_logprobs: torch.Tensor | None = None  # log π_engine, nats; None: no truncated weight, no mismatch
    reference_logprobs: torch.Tensor | None = None  # log π_ref, nats; None: no KL term

    def __post_init__(self) -> None:
        expected = self.logprobs.shape
        for name, values in self.given().items():
            if values.shape != expected:
                raise ValueError(f"{name}: got shape {list(values.shape)}, expected that of logprobs, {list(expected)}")

    def given(self) -> dict[str, torch.Tensor]:
        """Name to tensor, of those that are not None."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


@dataclass(frozen=True)
class LossOutputs:
    """A micro-batch's part of the loss, to be summed over micro-batches, and what it was made of."""

    loss: torch.Tensor  # scalar, with gradient
    metrics: LossMetrics  # detached


def clipped_objective(
    shaped_ratio: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """Clipped objective of each token, to be maximised (inner term of eq. 11).

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


def kl_estimate(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Estimate of ``KL(π_θ ‖ π_ref)`` from each token sampled from π_θ: unbiased, of low variance (k3; section 8).

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
    """The RAPO loss, the negative of eq. 11, of one micro-batch.

        L = -Σₜ wₜ [ min(π_old / π_engine, C)ₜ · clipped(r̂ₜ, Aₜ) - β · k₃ₜ ]

    Tokens of weight 0 get a gradient of exactly 0, whatever their numbers are, NaN included.

    Args:
        inputs: wₜ is ``weights``, r̂ₜ (eq. 8) from ``logprobs``, ``old_logprobs``, ``retrieved_share``; Aₜ is ``advantages``.
        settings: C is ``importance_cap``, m ``importance_shaping_weight``, β ``kl_coeff``; clips by their names.

    Returns:
        The loss, a sum, since weights are shares of the whole batch; and its metrics.

    Raises:
        ValueError: ``kl_coeff`` is positive and there are no reference logprobs.
    """
    if settings.kl_coeff > 0 and inputs.reference_logprobs is None:
        raise ValueError(f"kl_coeff is {settings.kl_coeff}: the loss needs reference_logprobs, got None")
    tokens = _without_masked(inputs)
    ratio = importance_ratio(tokens.logprobs, tokens.old_logprobs)
    shaped = shaped_ratio(ratio, tokens.retrieved_share, settings.importance_shaping_weight)
    truncation = _truncation(tokens, settings.importance_cap)
    objective = truncation * clipped_objective(
        shaped, tokens.advantages, settings.clip_low, settings.clip_high, settings.dual_clip
    )
    kl = torch.zeros_like(tokens.logprobs)
    if tokens.reference_logprobs is not None:
        kl = kl_estimate(tokens.logprobs, tokens.reference_logprobs.detach())
    per_token = objective - settings.kl_coeff * kl if settings.kl_coeff else objective
    with torch.no_grad():
        metrics = _metrics(tokens, settings, ratio=ratio, shaped=shaped, truncation=truncation, kl=kl)
    return LossOutputs(-(tokens.weights * per_token).sum(), metrics)


def _without_masked(inputs: LossInputs) -> LossInputs:
    """The same with 0 for every number of a masked token: a weight of 0 alone would let NaN and infinity through."""
    keep = inputs.weights != 0
    return replace(inputs, **{name: torch.where(keep, values, 0) for name, values in inputs.given().items()})


def _truncation(tokens: LossInputs, cap: float | None) -> torch.Tensor:
    if cap is None or tokens.rollout_logprobs is None:
        return torch.ones_like(tokens.old_logprobs)
    return truncated_importance_weight(tokens.old_logprobs, tokens.rollout_logprobs, cap)


def _metrics(
    tokens: LossInputs,
    settings: ObjectiveSettings,
    *,
    ratio: torch.Tensor,
    shaped: torch.Tensor,
    truncation: torch.Tensor,
    kl: torch.Tensor,
) -> LossMetrics:
    keep = tokens.weights != 0

    def total(values: torch.Tensor) -> torch.Tensor:
        return torch.where(keep, values, 0).sum()

    def largest(values: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.where(keep, values, 0), values.new_zeros(1)]).max()

    rollout = tokens.rollout_logprobs
    mismatch = torch.zeros_like(ratio) if rollout is None else tokens.logprobs - rollout
    excess = torch.zeros_like(ratio) if rollout is None else tokens.old_logprobs - rollout
    cap = math.inf if settings.importance_cap is None else settings.importance_cap
    dual_clip = math.inf if settings.dual_clip is None else settings.dual_clip
    negative, positive = tokens.advantages < 0, tokens.advantages > 0
    return LossMetrics(
        num_tokens=keep.sum(),
        ratio_sum=total(ratio),
        ratio_max=largest(ratio),
        clipped_low=total(negative & (shaped < 1 - settings.clip_low)),
        clipped_high=total(positive & (shaped > 1 + settings.clip_high)),
        dual_clipped=total(negative & (shaped > dual_clip)),
        truncation_sum=total(truncation),
        truncated=total(excess > math.log(cap)),
        mismatch_sum=total(mismatch.abs()),
        mismatch_max=largest(mismatch.abs()),
        mismatch_kl_sum=total(kl_estimate(torch.zeros_like(mismatch), mismatch)),
        kl_sum=total(kl),
    )
