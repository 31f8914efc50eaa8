"""The part of the learner that prepares an update: packs rows, and scores what stays fixed while the policy moves.

minibatches of groups --pack--> rows --old policy, reference model--> ScoredMinibatch (one per optimiser step)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch

from rapo_rllib.attention.forward import RowAttention, use_attention
from rapo_rllib.batching.packing import PackedRow, empty_row, pack_rows
from rapo_rllib.batching.samples import SampleGroup
from rapo_rllib.learner.fsdp import CallModel, ShardedModel, call_model
from rapo_rllib.learner.identity import base_fingerprint
from rapo_rllib.learner.lockstep import Lockstep, Pass, passes_over
from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.learner.rl_module import LOGPROBS, ROW, CausalLMRLModule
from rapo_rllib.models.loading import load_causal_lm
from rapo_rllib.settings import ModelSettings

Result = TypeVar("Result")


@dataclass
class ScoredRow:
    """A packed row with what stays fixed while the policy moves."""

    row: PackedRow
    old_logprobs: torch.Tensor | None  # [N] log π_old; None: those of the first forward pass
    reference_logprobs: torch.Tensor | None  # [N] of the frozen reference model; None without KL term


@dataclass(frozen=True)
class ScoredMinibatch:
    """The rows of one learner in one optimiser step."""

    rows: list[ScoredRow]
    num_passes: int  # rows of the learner with most: with sharded weights all pass through the model so often


@dataclass(frozen=True)
class ScoringSettings:
    """The part of a job's config that the rows of an update depend on."""

    model: ModelSettings
    max_tokens_per_micro_batch: int
    old_policy: str  # whose log π_old: rollout or learner
    kl_coeff: float  # without it there is no reference model


class RowScorer:
    """Rows of an update, and passes over rows.

    Args:
        policy: that is trained.
        settings: what of a job's config counts here.
        device: of the rows.
        ranks: all learners.
        lockstep: of learners with sharded weights; None: every learner holds all weights, and passes alone.
    """

    def __init__(
        self, policy: CausalLMRLModule, settings: ScoringSettings, device: torch.device, ranks: Ranks, lockstep: Lockstep | None
    ) -> None:
        self._policy, self._settings, self._device, self._ranks, self._lockstep = policy, settings, device, ranks, lockstep
        self._reference: CallModel | None = None  # of the reference model, made when the KL term first needs it
        self._reference_fingerprint: str | None = None  # of its weights, where it is a model of its own

    def scored(self, minibatches: Sequence[Sequence[SampleGroup]]) -> list[ScoredMinibatch]:
        """One for each optimiser step; on all learners together.

        No step is taken on a minibatch without a row on any learner: moments and weight decay alone would move the weights.
        """
        with self._ranks.raise_on_all_ranks("packing"):
            packed = [self.packed(groups) for groups in minibatches]
        counts = [int(count) for count in self._ranks.max([len(rows) for rows in packed])] if packed else []
        packed = [rows for rows, count in zip(packed, counts, strict=True) if count]
        counts = [count for count in counts if count]
        self._make_reference()
        passes = [
            one
            for index, (rows, count) in enumerate(zip(packed, counts, strict=True))
            for one in self._scoring_passes(rows, count, first=index == 0)
        ]
        with self._ranks.raise_on_all_ranks("scoring the old policy"):
            scored = iter(self.run(passes))
        return [ScoredMinibatch(list(islice(scored, len(rows))), n) for rows, n in zip(packed, counts, strict=True)]

    def packed(self, groups: Sequence[SampleGroup]) -> list[PackedRow]:
        """Rows of these groups, on the device."""
        share = self._policy.attention is not RowAttention.UNSHARED
        rows = pack_rows(groups, self._settings.max_tokens_per_micro_batch, share)
        return [row.to(self._device) for row in rows]

    def _scoring_passes(self, rows: Sequence[PackedRow], count: int, *, first: bool) -> list[Pass[ScoredRow]]:
        def scored(row: PackedRow) -> ScoredRow:
            return ScoredRow(row, self._old_logprobs(row, first), self._reference_logprobs(row))

        return passes_over(rows, scored, lambda: scored(self.empty_row()), count)

    def run(self, passes: Sequence[Pass[Result]]) -> list[Result]:
        """Results of the passes; with sharded weights in lockstep with the other learners."""
        if self._lockstep is None:
            return [one.work() for one in passes if one.work is not None]
        return self._lockstep.run(passes)

    def empty_row(self) -> PackedRow:
        """A row for a pass with nothing in it."""
        return empty_row().to(self._device)

    def _old_logprobs(self, row: PackedRow, first: bool) -> torch.Tensor | None:
        """Log π_old. The learner's own cost a forward pass, but for the first minibatch: its first pass is one."""
        if self._settings.old_policy == "rollout":
            return row.rollout_logprobs
        if first:
            return None
        with torch.no_grad():
            return self._policy.forward_train({ROW: row})[LOGPROBS]

    def _make_reference(self) -> None:
        """The model that training started from: with LoRA in the policy, else outside of it, which trains and is saved."""
        if self._settings.kl_coeff <= 0 or self._reference is not None:
            return
        policy = self._policy
        if policy.adapters is not None:
            self._reference = policy.reference  # the same weights: nothing is loaded
            return
        with self._ranks.raise_on_all_ranks("loading the reference model"):
            model = load_causal_lm(self._settings.model).eval().requires_grad_(False)
            self._reference_fingerprint = base_fingerprint(model)
            use_attention(model, policy.attention)
            if self._lockstep is None:
                self._reference = call_model(model.to(self._device))
        if self._lockstep is not None:
            self._reference = ShardedModel(model, self._device, self._lockstep)

    def reference_fingerprint(self) -> str | None:
        """A fingerprint of its weights; None without one, and with LoRA, where it is the base model."""
        self._make_reference()
        return self._reference_fingerprint

    def _reference_logprobs(self, row: PackedRow) -> torch.Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return self._policy.scored_by(self._reference, row)[0]
