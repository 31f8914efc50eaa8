"""Metrics of the policy loss: sums over tokens, to be added over micro-batches, steps and learners.

policy_loss --terms of each token--> loss_metrics --> LossMetrics --averages--> numbers for people
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from rapo_rllib.objective.importance import trajectory_mean
from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.settings import ObjectiveSettings


@dataclass(frozen=True)
class LossMetrics:
    """Detached scalars of one or more calls of ``policy_loss``; tokens of weight 0 are in none of them.

    They are of the tokens that the engine sampled, unless they are said to be of off-policy tokens.

    Metrics of several calls are combined by adding sums and taking maxima; ``averages()["ratio"]`` is then over all tokens.
    """

    num_tokens: torch.Tensor  # tokens of weight > 0, off-policy ones included
    num_off_policy_tokens: torch.Tensor
    num_trajectories: torch.Tensor  # with tokens, not off-policy; 0 if tokens are not assigned to trajectories
    ratio_sum: torch.Tensor  # r = π_θ / π_old, or its sequence's, before shaping and clipping
    ratio_max: torch.Tensor
    clipped_low: torch.Tensor  # tokens with A < 0 and r̂ < 1 - ε_low: without gradient, unless clipping preserves it
    clipped_high: torch.Tensor  # the same for A > 0 and r̂ > 1 + ε_high
    dual_clipped: torch.Tensor  # tokens without gradient: A < 0 and r̂ > c
    clipped_low_trajectories: torch.Tensor  # sum of each trajectory's share; a share is 0 or 1 if the ratio is the sequence's
    clipped_high_trajectories: torch.Tensor
    truncation_sum: torch.Tensor  # weights min(π_old / π_engine, C); 1 each where none is used
    truncated: torch.Tensor  # tokens whose weight was cut to the cap C
    # Between present learner and engine: on the first optimiser step of a batch the mismatch alone, later the updates, too.
    mismatch_sum: torch.Tensor  # |log π_θ - log π_engine|, nats
    mismatch_max: torch.Tensor
    mismatch_kl_sum: torch.Tensor  # estimate of KL(π_engine ‖ π_θ), nats
    kl_sum: torch.Tensor  # estimate of KL(π_θ ‖ π_ref), nats
    off_policy_ratio_sum: torch.Tensor  # off-policy tokens: π_θ / π_φ; an expert's: π_θ

    @property
    def num_on_policy_tokens(self) -> float:
        """Tokens that the engine sampled."""
        return float(self.num_tokens - self.num_off_policy_tokens)

    def averages(self) -> dict[str, float]:
        """Compute means per token or trajectory (``ratio``, ...), 0 where there was none; maxima and counts as they are."""
        result = {}
        for field in fields(self):
            value = float(getattr(self, field.name))
            whole = field.name.startswith("num_") or field.name.endswith("_max")
            result[field.name.removesuffix("_sum")] = value if whole else value / max(self._number_behind(field.name), 1.0)
        return result

    def _number_behind(self, name: str) -> float:
        if name.endswith("_trajectories"):
            return float(self.num_trajectories)
        return float(self.num_off_policy_tokens) if name.startswith("off_policy") else self.num_on_policy_tokens


@torch.no_grad()
def loss_metrics(
    tokens: LossInputs,
    settings: ObjectiveSettings,
    *,
    loss_mask: torch.Tensor,
    ratio: torch.Tensor,
    clip_ratio: torch.Tensor,
    truncation: torch.Tensor,
    kl: torch.Tensor,
) -> LossMetrics:
    """Compute the sums and maxima over the tokens of one micro-batch.

    Args:
        tokens: inputs of the loss; all numbers of masked tokens are 0.
        settings: of the objective.
        loss_mask: ``[N]`` bool, tokens that count.
        ratio: r, ``[N]``.
        clip_ratio: the ratio that was clipped, ``[N]``: r̂, or r if shaping comes after the clip.
        truncation: w, ``[N]``.
        kl: k₃, ``[N]``.
    """
    off_policy = loss_mask & tokens.off_policy if tokens.off_policy is not None else torch.zeros_like(loss_mask)
    sampled = loss_mask & ~off_policy

    def total(values: torch.Tensor, where: torch.Tensor = sampled) -> torch.Tensor:
        return torch.where(where, values, 0).sum()

    def largest(values: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.where(sampled, values, 0), values.new_zeros(1)]).max()

    rollout, zeros = tokens.rollout_logprobs, torch.zeros_like(ratio)
    mismatch = zeros if rollout is None else tokens.logprobs - rollout
    low, high, dual = _clipped(tokens.advantages, clip_ratio, settings)
    shares, num_trajectories = _shares(sampled, tokens.trajectory_ids)
    return LossMetrics(
        num_tokens=loss_mask.sum(),
        num_off_policy_tokens=off_policy.sum(),
        num_trajectories=num_trajectories,
        ratio_sum=total(ratio),
        ratio_max=largest(ratio),
        clipped_low=total(low),
        clipped_high=total(high),
        dual_clipped=total(dual),
        clipped_low_trajectories=(shares * low).sum(),
        clipped_high_trajectories=(shares * high).sum(),
        truncation_sum=total(truncation),
        truncated=total(_truncated(tokens, settings, loss_mask)),
        mismatch_sum=total(mismatch.abs()),
        mismatch_max=largest(mismatch.abs()),
        mismatch_kl_sum=total(torch.expm1(mismatch) - mismatch),
        kl_sum=total(kl),
        off_policy_ratio_sum=total(ratio, off_policy),
    )


def _clipped(
    advantages: torch.Tensor, clip_ratio: torch.Tensor, settings: ObjectiveSettings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    negative, positive = advantages < 0, advantages > 0
    dual_clip = math.inf if settings.dual_clip is None else settings.dual_clip
    low = negative & (clip_ratio < 1 - settings.clip_low)
    return low, positive & (clip_ratio > 1 + settings.clip_high), negative & (clip_ratio > dual_clip)


def _truncated(tokens: LossInputs, settings: ObjectiveSettings, loss_mask: torch.Tensor) -> torch.Tensor:
    """Mark the tokens whose weight was cut to the cap C."""
    if settings.importance_cap is None or tokens.rollout_logprobs is None:
        return torch.zeros_like(loss_mask)
    excess = tokens.old_logprobs - tokens.rollout_logprobs
    if settings.importance_level != "token" and tokens.trajectory_ids is not None:
        excess = trajectory_mean(excess, tokens.trajectory_ids, loss_mask)
    return excess > math.log(settings.importance_cap)


def _shares(sampled: torch.Tensor, trajectory_ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute 1 / nᵢ for each of the nᵢ sampled tokens of trajectory i, and the number of trajectories; without ids all 0."""
    counts = torch.zeros_like(sampled, dtype=torch.float32)  # a slot per trajectory, and some to spare
    if trajectory_ids is None:
        return counts, counts.sum()
    counts = counts.index_add(0, trajectory_ids, sampled.float())
    shares = 1 / counts.clamp_min(1)[trajectory_ids]
    return torch.where(sampled, shares, torch.zeros_like(shares)), (counts > 0).sum()
