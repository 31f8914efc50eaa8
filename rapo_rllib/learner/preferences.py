"""The part of the learner that turns pairs of steps into advantages: what DPO's gradient is at the policy before the update.

scored rows of a minibatch --logprobs of policy and reference--> margins of pairs --> advantages of their tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from rapo_rllib.batching.packing import PackedRow
from rapo_rllib.objective.preference import preference_advantages, preference_margins


@dataclass
class ScoredRow:
    """A packed row with what stays fixed while the policy moves."""

    row: PackedRow
    old_logprobs: torch.Tensor | None  # [N] log π_old; None: those of the first forward pass
    reference_logprobs: torch.Tensor | None  # [N] of the frozen reference model; None where nothing needs it
    policy_logprobs: torch.Tensor | None = None  # [N] of the policy before the update; None but for preferred steps


@dataclass(frozen=True)
class Preference:
    """How steps of the buffer are preferred (``step_comparison: implicit``)."""

    weight: float  # of the advantages
    beta: float


def with_preferences(rows: Sequence[ScoredRow], how: Preference) -> tuple[list[ScoredRow], torch.Tensor]:
    """Add the advantages of preferred steps; nobody sampled these, so π_old and π_engine of them are the policy as it is.

    Args:
        rows: of one minibatch, with the logprobs of policy and reference; both steps of every pair are among them.
        how: they are preferred.

    Returns:
        The rows, and the margin Δ of each pair, ``[P]``.
    """
    if not rows:
        return [], torch.zeros(0)
    log_ratios = [_known(scored.policy_logprobs) - _known(scored.reference_logprobs) for scored in rows]
    pairs = torch.cat([scored.row.pairs for scored in rows])
    margins = preference_margins(pairs, torch.cat(log_ratios), how.beta)
    added = how.weight * preference_advantages(pairs, margins)
    parts = added.split([scored.row.num_loss_tokens for scored in rows])
    return [_with(scored, part) for scored, part in zip(rows, parts, strict=True)], margins[1:]


def _with(scored: ScoredRow, added: torch.Tensor) -> ScoredRow:
    row, now = scored.row, _known(scored.policy_logprobs)
    unsampled = row.pairs > 0
    sampled_by = torch.where(unsampled, now, row.rollout_logprobs)
    old = None if scored.old_logprobs is None else torch.where(unsampled, now, scored.old_logprobs)
    return ScoredRow(
        replace(row, advantages=row.advantages + added, rollout_logprobs=sampled_by), old, scored.reference_logprobs
    )


def _known(logprobs: torch.Tensor | None) -> torch.Tensor:
    if logprobs is None:
        raise ValueError("preferred steps need the logprobs of policy and reference model")
    return logprobs
