"""The learner's preparation of an update: it packs rows, and scores them with the models that stay fixed during the update.

minibatches of groups --pack--> rows --old policy, reference model--> scored rows of each optimiser step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from rapo_rllib.attention.forward import RowAttention, use_attention
from rapo_rllib.batching.packing import PackedRow, empty_row, pack_rows
from rapo_rllib.batching.samples import SampleGroup
from rapo_rllib.learner.fsdp import CallModel, ShardedModel, call_model
from rapo_rllib.learner.lockstep import Lockstep
from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.learner.rl_module import LOGPROBS, ROW, CausalLMRLModule
from rapo_rllib.models.loading import load_causal_lm
from rapo_rllib.settings import Settings

Item = TypeVar("Item")
Result = TypeVar("Result")


class RowScorer:
    """Packer and scorer of an update's rows, and runner of passes over rows.

    Args:
        policy: the one that is trained.
        device: of the rows.
        ranks: all learners.
        lockstep: of learners with sharded weights; None: every learner holds all weights, and runs its passes alone.
        settings: of the job: here, a row's token budget, the source of log π_old, and whether there is a reference model.
    """

    def __init__(
        self, policy: CausalLMRLModule, device: torch.device, ranks: Ranks, lockstep: Lockstep | None, settings: Settings
    ) -> None:
        self._policy, self._device, self._ranks, self._lockstep = policy, device, ranks, lockstep
        self._max_tokens, self._old_policy = settings.update.max_tokens_per_micro_batch, settings.old_policy
        self._kl_coeff = settings.objective.kl_coeff  # 0: there is no reference model
        self._reference: CallModel | None = None  # calls the reference model, made when the KL term first needs it

    def scored(self, minibatches: Sequence[Sequence[SampleGroup]]) -> list[list[PackedRow]]:
        """Pack and score this learner's rows for each optimiser step. All learners call this together.

        A minibatch that has no row on any learner is left out: moments and weight decay alone would move the weights.
        With sharded weights, learners with fewer rows get empty ones, since all pass through the model together.
        """
        with self._ranks.raise_on_all_ranks("packing"):
            packed = [self.packed(groups) for groups in minibatches]
        counts = self._ranks.max([len(rows) for rows in packed]) if packed else []
        if self._lockstep is not None:
            for rows, count in zip(packed, counts, strict=True):
                rows += [self.empty_row() for _ in range(int(count) - len(rows))]
        packed = [rows for rows, count in zip(packed, counts, strict=True) if count]
        self._make_reference()
        passes = [(row, index == 0) for index, rows in enumerate(packed) for row in rows]
        with self._ranks.raise_on_all_ranks("scoring the old policy"):
            self.run(passes, lambda one: self._score(*one), lambda one: self._score(self.empty_row(), one[1]))
        return packed

    def run(self, items: Sequence[Item], work: Callable[[Item], Result], dummy_pass: Callable[[Item], Any]) -> list[Result]:
        """Run one pass for each item, and return the results; with sharded weights, in lockstep with the other learners."""
        if self._lockstep is None:
            return [work(item) for item in items]
        return self._lockstep.run(items, work, dummy_pass)

    def empty_row(self) -> PackedRow:
        """Make a row without loss tokens, on the device."""
        return empty_row().to(self._device)

    def _score(self, row: PackedRow, first: bool) -> None:
        row.old_logprobs = self._old_logprobs(row, first)
        row.reference_logprobs = self._reference_logprobs(row)

    def packed(self, groups: Sequence[SampleGroup]) -> list[PackedRow]:
        """Pack these groups into rows, on the device."""
        share = self._policy.attention is not RowAttention.UNSHARED
        return [row.to(self._device) for row in pack_rows(groups, self._max_tokens, share)]

    def _old_logprobs(self, row: PackedRow, first: bool) -> torch.Tensor | None:
        """Find a row's log π_old. If the learner computes it, None in the first minibatch: the training pass gives it."""
        if self._old_policy == "rollout":
            return row.rollout_logprobs
        if first:
            return None
        with torch.no_grad():
            return self._policy.forward_train({ROW: row})[LOGPROBS]

    def _make_reference(self) -> None:
        """Make the reference model: with LoRA, the policy without adapters; else a model that is neither trained nor saved."""
        policy = self._policy
        if self._kl_coeff <= 0 or self._reference is not None:
            return
        if policy.adapters is not None:
            self._reference = policy.reference  # the same weights: nothing is loaded
            return
        with self._ranks.raise_on_all_ranks("loading the reference model"):
            model = load_causal_lm(policy.settings, policy.with_weights).eval().requires_grad_(False)
            use_attention(model, policy.attention)
            if self._lockstep is None:
                self._reference = call_model(model.to(self._device))
        if self._lockstep is not None:
            self._reference = ShardedModel(model, self._device, self._lockstep)

    def _reference_logprobs(self, row: PackedRow) -> torch.Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return self._policy.scored_by(self._reference, row)[0]
