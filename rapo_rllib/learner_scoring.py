"""The part of the learner that prepares an update: packs rows, and scores what stays fixed while the policy moves.

minibatches of groups --pack--> rows --old policy, reference model--> ScoredMinibatch (one per optimiser step)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch

from rapo_rllib.attention.forward import RowAttention, use_attention
from rapo_rllib.batching.packing import PackedRow, empty_row, pack_rows
from rapo_rllib.batching.samples import SampleGroup
from rapo_rllib.learner_identity import base_fingerprint
from rapo_rllib.learner_lockstep import Lockstep, Pass, passes_over
from rapo_rllib.learner_ranks import Ranks
from rapo_rllib.models import load_causal_lm
from rapo_rllib.rl_module import LOGPROBS, ROW, CausalLMRLModule, score_row
from rapo_rllib.sharding import CallModel, ShardedModel, call_model

Result = TypeVar("Result")


@dataclass
class ScoredRow:
    """A packed row with what stays fixed while the policy moves."""

    row: PackedRow
    old_logprobs: torch.Tensor | None  # [N] log π_old; None: those of the first forward pass
    reference_logprobs: torch.Tensor | None  # [N] of the frozen reference model; None without KL term


@dataclass(frozen=True)
class ScoredMinibatch:
    """This learner's rows of one optimiser step."""

    rows: list[ScoredRow]
    num_passes: int  # forward and backward passes of the step: with sharded weights those of the learner with most rows


class ScoresRows:
    """Rows of an update, and passes over rows."""

    # of the learner
    config: Any
    policy: Any
    distributed: bool
    _device: Any
    _lockstep: Lockstep | None  # None: every learner holds all weights, and passes alone

    _reference: CallModel | None = None  # of the reference model, made when the KL term first needs it
    _reference_fingerprint: str | None = None  # of its weights, where it is a model of its own

    @property
    def _ranks(self) -> Ranks:
        return Ranks(torch.device(self._device), self.distributed)

    def _scored(self, minibatches: Sequence[Sequence[SampleGroup]]) -> list[ScoredMinibatch]:
        with self._ranks.together("packing"):
            packed = [self._packed(groups) for groups in minibatches]
        counts = [len(rows) for rows in packed]
        if self._lockstep is not None and counts:
            counts = [int(count) for count in self._ranks.max(counts)]
        self._make_reference()
        passes = [
            one
            for index, (rows, count) in enumerate(zip(packed, counts, strict=True))
            for one in self._scoring_passes(rows, count, first=index == 0)
        ]
        with self._ranks.together("scoring the old policy"):
            scored = iter(self._run(passes))
        return [ScoredMinibatch(list(islice(scored, len(rows))), n) for rows, n in zip(packed, counts, strict=True)]

    def _packed(self, groups: Sequence[SampleGroup]) -> list[PackedRow]:
        share = self.policy.attention is not RowAttention.UNSHARED
        rows = pack_rows(groups, self.config.max_tokens_per_micro_batch, share)
        return [row.to(torch.device(self._device)) for row in rows]

    def _scoring_passes(self, rows: Sequence[PackedRow], count: int, *, first: bool) -> list[Pass[ScoredRow]]:
        def scored(row: PackedRow) -> ScoredRow:
            return ScoredRow(row, self._old_logprobs(row, first), self._reference_logprobs(row))

        return passes_over(rows, scored, lambda: scored(self._empty_row()), count)

    def _run(self, passes: Sequence[Pass[Result]]) -> list[Result]:
        """Results of the passes; with sharded weights in lockstep with the other learners."""
        if self._lockstep is None:
            return [one.work() for one in passes if one.work is not None]
        return self._lockstep.run(passes)

    def _empty_row(self) -> PackedRow:
        return empty_row().to(torch.device(self._device))

    def _old_logprobs(self, row: PackedRow, first: bool) -> torch.Tensor | None:
        """Log π_old. The learner's own cost a forward pass, but for the first minibatch: its first pass is one."""
        if self.config.old_policy == "rollout":
            return row.rollout_logprobs
        if first:
            return None
        with torch.no_grad():
            return self.policy.forward_train({ROW: row})[LOGPROBS]

    def _make_reference(self) -> None:
        """The model that training started from: with LoRA in the policy, else outside of it, which trains and is saved."""
        if self.config.objective_settings.kl_coeff <= 0 or self._reference is not None:
            return
        policy: CausalLMRLModule = self.policy
        device = torch.device(self._device)
        if policy.adapters is not None:
            self._reference = policy.reference  # the same weights: nothing is loaded
            return
        with self._ranks.together("loading the reference model"):
            model = load_causal_lm(self.config.model_settings).eval().requires_grad_(False)
            self._reference_fingerprint = base_fingerprint(model)
            use_attention(model, policy.attention)
            if self._lockstep is None:
                self._reference = call_model(model.to(device))
        if self._lockstep is not None:
            self._reference = ShardedModel(model, device, self._lockstep)

    def reference_fingerprint(self) -> str | None:
        """What tells its weights from others; None without one, and with LoRA, where it is the base model."""
        self._make_reference()
        return self._reference_fingerprint

    def _reference_logprobs(self, row: PackedRow) -> torch.Tensor | None:
        if self._reference is None:
            return None
        policy: CausalLMRLModule = self.policy
        with torch.no_grad():
            return self._reference(score_row, row, self.config.model_settings, policy.temperature, policy.attention)[0]
