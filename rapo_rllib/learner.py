"""The learner: packed rows in, one optimiser step per minibatch out.

    TrainingBatch --pack--> rows --score, loss, backward (accumulated)--> gradients summed over learners --> clip --> AdamW

It routes; the objective is in ``objective/``, the packing in ``batching/``, the forward pass in ``rl_module.py``. Departures
from RLlib's ``TorchLearner``, and why:

1. ``update()`` does its own minibatches: RLlib's would slice packed rows by index.
2. No DDP wrapper. Learners accumulate alone and sum gradients once per step, after all of them report success: a learner
   without groups, or one that raises, cannot leave the others waiting.
3. A step whose loss or gradient is not finite is skipped and counted: RLlib would apply it, or set it to zero.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import NUM_ENV_STEPS_TRAINED, NUM_ENV_STEPS_TRAINED_LIFETIME, WEIGHTS_SEQ_NO
from ray.rllib.utils.typing import StateDict

from rapo_rllib.batching.packing import PackedRow, pack_rows
from rapo_rllib.batching.samples import SampleGroup
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.errors import LearnerError
from rapo_rllib.hardware import return_free_memory
from rapo_rllib.learner_metrics import UpdateMetrics
from rapo_rllib.learner_ranks import Ranks
from rapo_rllib.learner_state import load_optimizer_state, optimizer_state
from rapo_rllib.models import load_causal_lm
from rapo_rllib.objective.loss import LossInputs, policy_loss
from rapo_rllib.rl_module import ENTROPIES, LOGPROBS, ROW, CausalLMRLModule, score_row

METRICS = "metrics"  # key of the batch: the UpdateMetrics that a row is added to


@dataclass
class ScoredRow:
    """A packed row with what stays fixed while the policy moves."""

    row: PackedRow
    old_logprobs: torch.Tensor | None  # [N] log π_old; None: those of the first forward pass
    reference_logprobs: torch.Tensor | None  # [N] of the frozen reference model; None without KL term


class RAPOTorchLearner(TorchLearner):
    """Moves the policy by the RAPO objective. Settings come from ``self.config``, a ``RAPOConfig``."""

    config: Any  # a RAPOConfig: RLlib's own type lacks its attributes
    _device: Any  # set by build()
    _module: Any  # a MultiRLModule, set by build()

    @override(TorchLearner)
    def build(self) -> None:
        """Load the model and make its optimiser."""
        super().build()
        self._reference: Any = None  # loaded when the KL term first needs it
        self._skipped_in_a_row = 0

    @property
    def policy(self) -> CausalLMRLModule:
        """The language model that is trained."""
        return self._module[DEFAULT_MODULE_ID].unwrapped()

    @property
    def _ranks(self) -> Ranks:
        return Ranks(torch.device(self._device), self.distributed)

    @override(TorchLearner)
    def _make_modules_ddp_if_necessary(self) -> None:
        """No DDP (see the top of this file); all learners start from the weights of the first."""
        self._ranks.copy_from_first(self.policy.parameters())

    @override(TorchLearner)
    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """AdamW in one fused kernel; RLlib keeps its learning rate on schedule."""
        parameters = [p for p in self.get_parameters(self._module[module_id]) if p.requires_grad]
        optimizer = torch.optim.AdamW(
            parameters, betas=tuple(self.config.adam_betas), weight_decay=self.config.weight_decay, fused=True
        )
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr)

    @staticmethod
    @override(TorchLearner)
    def _set_optimizer_lr(optimizer: torch.optim.Optimizer, lr: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = float(lr)  # schedules hand out tensors, which would end up in checkpoints

    @override(Learner)
    def update(  # type: ignore[override]  # this learner trains on a TrainingBatch only
        self, *, training_data: TrainingBatch, timesteps: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Train on a batch, or on this learner's shard of it: ``num_epochs`` times over its minibatches.

        Returns:
            RLlib's reduced metrics.

        Raises:
            LearnerError: on all learners together, if one of them failed, or if more than ``max_skipped_updates`` steps in a
                row were not finite.
        """
        self._check_is_built()
        self.before_gradient_based_update(timesteps=timesteps or {})
        training_data.validate()
        training_data.solve_refs()
        return_free_memory()
        self._weights_seq_no += 1
        metrics, start = UpdateMetrics(), time.perf_counter()
        with _torch_threads(self._num_threads()):
            with self._ranks.together("scoring the old policy"):
                minibatches = [
                    self._scored_rows(minibatch, first=index == 0) for index, minibatch in enumerate(training_data.minibatches)
                ]
            for _ in range(self.config.num_epochs):
                for rows in minibatches:
                    self._optimizer_step(rows, metrics)
        self._log_update(training_data, metrics.reduced(self._ranks, time.perf_counter() - start))
        self.after_gradient_based_update(timesteps=timesteps or {})
        return_free_memory()
        return self.metrics.reduce()

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprobs that an engine with the current weights should report; see ``CausalLMRLModule.score_as_engine``."""
        with _torch_threads(self._num_threads()):
            return self.policy.score_as_engine(sequences)

    def export(self, folder: str) -> None:
        """Write the policy as a Hugging Face folder; the first learner does it for all."""
        if self._learner_index == 0:
            self.policy.export(folder)

    def _num_threads(self) -> int | None:
        """``learner_num_threads``; by default all cores for a local learner, and what Ray grants a remote one."""
        if self.config.learner_num_threads is None and self.config.num_learners == 0:
            return len(os.sched_getaffinity(0))
        return self.config.learner_num_threads

    def _scored_rows(self, groups: Sequence[SampleGroup], *, first: bool) -> list[ScoredRow]:
        rows = [row.to(torch.device(self._device)) for row in pack_rows(groups, self.config.max_tokens_per_micro_batch)]
        return [ScoredRow(row, self._old_logprobs(row, first), self._reference_logprobs(row)) for row in rows]

    def _old_logprobs(self, row: PackedRow, first: bool) -> torch.Tensor | None:
        """Log π_old. The learner's own cost a forward pass, but for the first minibatch: its first pass is one."""
        if self.config.old_logprobs == "rollout":
            return row.rollout_logprobs
        if first:
            return None
        with torch.no_grad():
            return self.policy.forward_train({ROW: row})[LOGPROBS]

    def _reference_logprobs(self, row: PackedRow) -> torch.Tensor | None:
        """Under the model that training started from; outside the module, which would train and checkpoint it."""
        if self.config.objective_settings.kl_coeff <= 0:
            return None
        settings = self.config.model_settings
        if self._reference is None:
            self._reference = load_causal_lm(settings).to(self._device).eval().requires_grad_(False)
        with torch.no_grad():
            return score_row(self._reference, row, settings, self.policy.temperature)[0]

    def _optimizer_step(self, rows: Sequence[ScoredRow], metrics: UpdateMetrics) -> None:
        """Accumulate over the rows of one minibatch, sum over the learners, step."""
        optimizer = self.get_optimizer(DEFAULT_MODULE_ID)
        optimizer.zero_grad(set_to_none=True)
        step_loss = 0.0
        with self._ranks.together("forward and backward"):
            for scored in rows:
                loss = self._micro_batch_loss(scored, metrics)
                loss.backward()
                step_loss += float(loss.detach())
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._ranks.sum_gradients(parameters)
        step_loss = self._ranks.sum([step_loss])[0]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not (torch.isfinite(norm) and torch.isfinite(torch.tensor(step_loss))):
            self._skip_step(step_loss, float(norm), metrics)
            return
        if self.config.grad_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.config.grad_clip, norm)
        optimizer.step()
        self._skipped_in_a_row = 0
        metrics.add_step(step_loss, float(norm))

    def _micro_batch_loss(self, scored: ScoredRow, metrics: UpdateMetrics) -> torch.Tensor:
        """This row's part of the minibatch's loss; weights are shares of the whole, so parts are summed, not averaged."""
        batch = {DEFAULT_MODULE_ID: {ROW: scored, METRICS: metrics}}
        scores = self._module.forward_train({DEFAULT_MODULE_ID: {ROW: scored.row}})
        return self.compute_losses(fwd_out=scores, batch=batch)[DEFAULT_MODULE_ID]

    @override(Learner)
    def compute_loss_for_module(  # type: ignore[override]
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """The objective on one row: a sum of per-token losses times their weights."""
        scored: ScoredRow = batch[ROW]
        if scored.old_logprobs is None:
            scored.old_logprobs = fwd_out[LOGPROBS].detach()
        row = scored.row
        inputs = LossInputs(
            logprobs=fwd_out[LOGPROBS],
            old_logprobs=scored.old_logprobs,
            advantages=row.advantages,
            retrieved_share=row.retrieved_share,
            weights=row.weights,
            rollout_logprobs=row.rollout_logprobs,
            reference_logprobs=scored.reference_logprobs,
        )
        losses = policy_loss(inputs, self.config.objective_settings)
        batch[METRICS].add_row(row.num_tokens, fwd_out[ENTROPIES], losses.metrics)
        return losses.loss

    def _skip_step(self, loss: float, norm: float, metrics: UpdateMetrics) -> None:
        """Leave weights and optimiser alone; too often in a row is an error, on all learners alike."""
        self._skipped_in_a_row += 1
        metrics.add_skipped_step()
        if self._skipped_in_a_row > self.config.max_skipped_updates:
            raise LearnerError(
                f"{self._skipped_in_a_row} optimiser steps in a row were not finite (loss {loss}, gradient norm {norm}), "
                f"max_skipped_updates is {self.config.max_skipped_updates}. Weights are those of the last finite step. "
                "Lower `lr` or set `grad_clip`; if it is the first step, look for broken rewards or logprobs."
            )

    def _log_update(self, batch: TrainingBatch, values: dict[str, float]) -> None:
        """Log the metrics of an update, the same on every learner; steps trained are each learner's own."""
        statistics = batch.statistics
        values["num_groups_without_signal"] = statistics.num_groups_without_signal
        values["num_failed_trajectories"] = statistics.num_failed_trajectories
        values["truncated_share"] = statistics.num_truncated_trajectories / max(statistics.num_trajectories, 1)
        for name, value in values.items():
            self.metrics.log_value((DEFAULT_MODULE_ID, name), value, reduce="mean", window=1)
        self.metrics.log_value((DEFAULT_MODULE_ID, WEIGHTS_SEQ_NO), self._weights_seq_no, reduce="mean", window=1)
        steps = sum(group.num_env_steps for group in batch.groups)
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED), steps, reduce="sum")
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), steps, reduce="lifetime_sum")

    @override(Learner)
    def set_state(self, state: StateDict) -> None:
        """Restore weights of any version: RLlib alone would keep the present ones where the restored are older."""
        if WEIGHTS_SEQ_NO in state:
            self._weights_seq_no = -1
        super().set_state(state)

    @override(TorchLearner)
    def _get_optimizer_state(self) -> StateDict:
        return {name: optimizer_state(optimizer) for name, optimizer in self._named_optimizers.items()}

    @override(TorchLearner)
    def _set_optimizer_state(self, state: StateDict) -> None:
        for name, optimizer in self._named_optimizers.items():
            load_optimizer_state(optimizer, state[name])


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    """Use ``count`` CPU threads inside (Ray grants an actor one), and the previous number again afterwards."""
    # not torch.set_num_threads: vLLM on CPU puts a function there that does nothing, in every process with an engine
    before = torch.get_num_threads()
    if count is not None:
        torch._C.set_num_threads(count)
    try:
        yield
    finally:
        torch._C.set_num_threads(before)
