"""The learner: packed rows in, one optimiser step per minibatch out.

    TrainingBatch --pack--> rows --score, loss, backward (accumulated)--> gradients summed over learners --> clip --> AdamW

It connects the objective (``objective/``), the packing (``batching/``) and the forward pass (``rl_module.py``). Departures from
RLlib's ``TorchLearner``, and why:

1. ``update()`` makes its own minibatches: RLlib would slice packed rows by index.
2. No DDP wrapper. Learners accumulate alone and sum gradients once per step, after all of them report success: a learner
   without groups, or one that raises, cannot leave the others waiting. With ``learner_parallelism: fsdp`` weights are sharded,
   and gradients summed in every pass: ``fsdp.py``, ``lockstep.py``.
3. A step whose loss or gradient is not finite is skipped and counted: RLlib would apply it, or set it to zero.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import ALL_MODULES, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import DEFAULT_OPTIMIZER, LR_KEY, Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import NUM_ENV_STEPS_TRAINED, NUM_ENV_STEPS_TRAINED_LIFETIME, WEIGHTS_SEQ_NO
from ray.rllib.utils.typing import StateDict

from rapo_rllib.batching.packing import PackedRow
from rapo_rllib.batching.training_batch import ImitationBatch, TrainingBatch
from rapo_rllib.errors import NotFiniteError
from rapo_rllib.learner.checkpoint import load_training_state, save_training_state
from rapo_rllib.learner.lockstep import Lockstep
from rapo_rllib.learner.master_weights import MasterWeightAdamW
from rapo_rllib.learner.metrics import UpdateMetrics
from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.learner.rl_module import ENTROPIES, LOGPROBS, ROW, WITH_WEIGHTS, CausalLMRLModule
from rapo_rllib.learner.scoring import RowScorer
from rapo_rllib.learner.weights import LearnerWeights
from rapo_rllib.models.devices import check_device, return_free_memory, torch_threads
from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.objective.loss import policy_loss
from rapo_rllib.settings import Settings
from rapo_rllib.weights.dtensor import copied, full_tensor, shard_like

METRICS = "metrics"  # key of the batch: the UpdateMetrics that a row is added to
MOST_SKIPPED_STEPS = 5  # in a row: a skipped step changes no weights, so later ones fail for the same reason


class RAPOTorchLearner(TorchLearner):
    """Learner of the policy under the RAPO objective. ``build()`` reads the settings from ``self.config``, a ``RAPOConfig``."""

    _device: Any  # set by build()
    _module: Any  # a MultiRLModule, set by build()

    @override(TorchLearner)
    def build(self) -> None:
        """Load the model and make its optimiser."""
        self.settings: Settings = cast(Any, self.config).settings  # of a RAPOConfig
        check_device("num_gpus_per_learner", self.settings.rllib.num_gpus_per_learner)
        sharded = self.distributed and self.settings.update.learner_parallelism == "fsdp"  # one learner has nothing to shard
        self._lockstep = Lockstep() if sharded else None
        super().build()
        self._skipped_in_a_row = 0
        self.rows = RowScorer(self.policy, torch.device(self._device), self._ranks, self._lockstep, self.settings)
        workers = self.settings.engine.tensor_parallel_size
        self.weights = LearnerWeights(self.policy, self._learner_index, workers, lambda: self._weights_seq_no)

    @property
    def policy(self) -> CausalLMRLModule:
        """The language model that is trained."""
        return self._module[DEFAULT_MODULE_ID].unwrapped()

    @property
    def _ranks(self) -> Ranks:
        return Ranks(torch.device(self._device), self.distributed)

    @override(TorchLearner)
    def _make_module(self) -> Any:
        """Make the module as RLlib does. With shards, only the first learner reads weights. If one learner fails, all raise."""
        with self._ranks.raise_on_all_ranks("loading the model"):
            if self._lockstep is not None:
                cast(Any, self._module_spec)[DEFAULT_MODULE_ID].model_config[WITH_WEIGHTS] = not dist.get_rank()
            module = Learner._make_module(self)
        self._map_module_to_device(module)
        return module

    @override(TorchLearner)
    def _map_module_to_device(self, module: Any) -> None:
        """Move the policy, or shard it, to the device; trained weights start on all learners with the first one's values."""
        policy = module[DEFAULT_MODULE_ID].unwrapped()
        if self._lockstep is not None:
            policy.shard(torch.device(self._device), self._lockstep)
            return
        super()._map_module_to_device(module)
        self._ranks.copy_from_first(p for p in policy.parameters() if p.requires_grad)

    @override(TorchLearner)
    def _make_modules_ddp_if_necessary(self) -> None:
        """Do nothing: there is no DDP wrapper (see the top of this file)."""

    @override(TorchLearner)
    def configure_optimizers_for_module(self, module_id: str, config: AlgorithmConfig | None = None) -> None:
        """Register a fused AdamW; RLlib sets its learning rate by the schedule."""
        parameters: list[Any] = [p for p in self.get_parameters(self._module[module_id]) if p.requires_grad]
        update, lr = self.settings.update, (config or self.config).lr
        rounded = any(parameter.dtype == torch.bfloat16 for parameter in parameters)  # float32 shards are their own masters
        optimizer_class = MasterWeightAdamW if rounded and self.settings.model.master_weights else torch.optim.AdamW
        optimizer = optimizer_class(parameters, weight_decay=update.weight_decay, fused=True)
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=lr)

    @staticmethod
    @override(TorchLearner)
    def _set_optimizer_lr(optimizer: torch.optim.Optimizer, lr: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = float(lr)  # schedules hand out tensors, which would end up in checkpoints

    @override(TorchLearner)
    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Log the learning rate of this update, in place of the next update's rate, which RLlib logs."""
        used = self._get_optimizer_lr(self.get_optimizer(DEFAULT_MODULE_ID))
        super().after_gradient_based_update(timesteps=timesteps)
        key = (DEFAULT_MODULE_ID, f"{DEFAULT_OPTIMIZER}_{LR_KEY}")
        self.metrics.delete(*key)  # type: ignore[arg-type]  # takes the parts of one key, but is annotated for several keys
        self.metrics.log_value(key, used, reduce="mean", window=1)

    @override(Learner)
    def update(  # type: ignore[override]  # this learner trains on a TrainingBatch only
        self, *, training_data: TrainingBatch, timesteps: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Train on a batch, or on this learner's shard of it: ``num_epochs`` times over its minibatches.

        Returns:
            RLlib's reduced metrics.

        Raises:
            LearnerError: on all learners together, if one of them failed.
            NotFiniteError: on all learners together, if ``MOST_SKIPPED_STEPS`` in a row were not finite.
        """
        self._check_is_built()
        if isinstance(training_data, ImitationBatch):
            return self._imitate(training_data)
        self.before_gradient_based_update(timesteps=timesteps or {})
        training_data.validate()
        training_data.solve_refs()
        return_free_memory()
        self._weights_seq_no += 1
        metrics, start = UpdateMetrics(), time.perf_counter()
        with torch_threads(self._num_threads()):
            minibatches = self.rows.scored(training_data.minibatches)
            for _ in range(self.settings.rllib.num_epochs):
                for minibatch in minibatches:
                    self._optimizer_step(minibatch, partial(self._add_gradient, metrics), metrics)
            self._drop_gradients()
        self._log_update(training_data, metrics.reduced(self._ranks, time.perf_counter() - start))
        self.after_gradient_based_update(timesteps=timesteps or {})
        return_free_memory()
        return self.metrics.reduce()

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return logprobs that an engine with the current weights should report; see ``CausalLMRLModule.score_as_engine``."""
        score = self.policy.score_as_engine
        with torch_threads(self._num_threads()), self._ranks.raise_on_all_ranks("scoring as an engine"):
            (scores,) = self.rows.run([sequences], score, partial(score, rounds=False))
        return_free_memory()  # of the copies that rounding took
        return scores

    def _num_threads(self) -> int | None:
        """Return ``learner_num_threads``; by default, all cores for a local learner, None (as Ray grants) for a remote one."""
        asked = self.settings.update.learner_num_threads
        return len(os.sched_getaffinity(0)) if asked is None and self.settings.rllib.num_learners == 0 else asked

    def _imitate(self, batch: ImitationBatch) -> dict[str, Any]:
        """Take one optimiser step of language modelling; log ``imitation_loss``, the mean over all learners' tokens, nats."""
        (rows,) = self.rows.scored(batch.minibatches)
        self._set_optimizer_lr(self.get_optimizer(DEFAULT_MODULE_ID), batch.lr)
        metrics = UpdateMetrics()
        with torch_threads(self._num_threads()):
            loss = self._optimizer_step(rows, self._add_imitation_gradient, metrics)
            self._drop_gradients()
        for name, value in {"imitation_loss": loss, "num_skipped_steps": metrics.num_skipped_steps}.items():
            self.metrics.log_value((DEFAULT_MODULE_ID, name), value, reduce="mean", window=1)
        return self.metrics.reduce()

    def _add_imitation_gradient(self, row: PackedRow) -> torch.Tensor:
        scores = self._module.forward_train({DEFAULT_MODULE_ID: {ROW: row}})[DEFAULT_MODULE_ID]
        loss = -(scores[LOGPROBS] * row.weights).sum()
        loss.backward()
        return loss.detach()

    def _optimizer_step(
        self, rows: Sequence[PackedRow], work: Callable[[PackedRow], torch.Tensor], metrics: UpdateMetrics
    ) -> float:
        """Take a step with the gradients that ``work`` adds for the rows, unless it is not finite; returns the loss."""
        loss, norm = self._accumulated(rows, work)
        if not (math.isfinite(norm) and math.isfinite(loss)):
            self._skip_step(loss, norm, metrics)
            return loss
        self._step(norm)
        self._skipped_in_a_row = 0
        metrics.add_step(loss, norm)
        return loss

    def _accumulated(self, rows: Sequence[PackedRow], work: Callable[[PackedRow], torch.Tensor]) -> tuple[float, float]:
        """Accumulate the gradient of all learners in the parameters; returns the loss and the gradient norm.

        The rows' losses stay on the device, and are read at once after the last row.
        """
        self._drop_gradients()
        with self._ranks.raise_on_all_ranks("forward and backward"):
            losses = self.rows.run(rows, work, self._add_no_gradient)
            own = float(torch.stack(losses).double().sum()) if losses else 0.0  # errors of the device show here
        if self._lockstep is None:
            self._ranks.sum_gradients(self._trained)
        loss = self._ranks.sum([own])[0]
        return loss, float(full_tensor(torch.nn.utils.get_total_norm([p.grad for p in self._trained if p.grad is not None])))

    def _step(self, norm: float) -> None:
        most = self.settings.rllib.grad_clip
        if most is not None:
            torch.nn.utils.clip_grads_with_norm_(self._trained, most, torch.tensor(norm))
        self.get_optimizer(DEFAULT_MODULE_ID).step()

    def _drop_gradients(self) -> None:
        """Free the gradients' memory: a weight sync needs as much for a copy of the weights."""
        self.get_optimizer(DEFAULT_MODULE_ID).zero_grad(set_to_none=True)

    @property
    def _trained(self) -> list[torch.nn.Parameter]:
        return [p for group in self.get_optimizer(DEFAULT_MODULE_ID).param_groups for p in group["params"]]

    def _add_gradient(self, metrics: UpdateMetrics, row: PackedRow) -> torch.Tensor:
        """Run forward and backward pass of one row; returns its loss, on the device."""
        loss = self._micro_batch_loss(row, metrics)
        loss.backward()
        return loss.detach()

    def _add_no_gradient(self, _: PackedRow) -> None:
        """Run a pass over an empty row, which adds no gradient, in place of a pass that a failed update has left."""
        scores = self._module.forward_train({DEFAULT_MODULE_ID: {ROW: self.rows.empty_row()}})
        scores[DEFAULT_MODULE_ID][LOGPROBS].sum().backward()

    def _micro_batch_loss(self, row: PackedRow, metrics: UpdateMetrics) -> torch.Tensor:
        """Compute a row's part of the minibatch loss. Token weights are shares of a whole: parts are summed, not averaged."""
        batch = {DEFAULT_MODULE_ID: {ROW: row, METRICS: metrics}}
        scores = self._module.forward_train(batch)
        return self.compute_losses(fwd_out=scores, batch=batch)[DEFAULT_MODULE_ID]

    @override(Learner)
    def compute_loss_for_module(  # type: ignore[override]
        self, *, module_id: str, config: AlgorithmConfig | None, batch: dict[str, Any], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Compute the objective on one row: a sum of per-token losses times their weights."""
        row: PackedRow = batch[ROW]
        if row.old_logprobs is None:
            row.old_logprobs = fwd_out[LOGPROBS].detach()
        inputs = LossInputs(
            logprobs=fwd_out[LOGPROBS],
            old_logprobs=torch.where(row.off_policy, row.rollout_logprobs, row.old_logprobs),
            advantages=row.advantages,
            retrieved_share=row.retrieved_share,
            weights=row.weights,
            rollout_logprobs=row.rollout_logprobs,
            reference_logprobs=row.reference_logprobs,
            trajectory_ids=row.trajectory_ids,
            off_policy=row.off_policy,
        )
        losses = policy_loss(inputs, self.settings.objective)
        if row.num_loss_tokens:  # not an empty row, which only runs beside other learners' rows
            batch[METRICS].add_row(row.num_tokens, fwd_out[ENTROPIES].masked_fill(row.off_policy, 0.0), losses.metrics)
        return losses.loss

    def _skip_step(self, loss: float, norm: float, metrics: UpdateMetrics) -> None:
        """Count a skipped step, which changes no weights; too many in a row raise ``NotFiniteError``, on all learners alike."""
        self._skipped_in_a_row += 1
        metrics.num_skipped_steps += 1
        if self._skipped_in_a_row >= MOST_SKIPPED_STEPS:
            raise NotFiniteError(
                f"{self._skipped_in_a_row} optimiser steps in a row were not finite (loss {loss}, gradient norm {norm}). "
                "Weights are those of the last finite step. "
                "Lower `lr` or set `grad_clip`; if it is the first step, look for broken rewards or logprobs."
            )

    def _log_update(self, batch: TrainingBatch, values: dict[str, float]) -> None:
        """Log an update's metrics, the same on every learner, and the env steps that this learner trained on."""
        for name, value in {**values, **batch.statistics}.items():
            self.metrics.log_value((DEFAULT_MODULE_ID, name), value, reduce="mean", window=1)
        self.metrics.log_value((DEFAULT_MODULE_ID, WEIGHTS_SEQ_NO), self._weights_seq_no, reduce="mean", window=1)
        steps = sum(group.num_env_steps for group in batch.groups)
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED), steps, reduce="sum")
        self.metrics.log_value((ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), steps, reduce="lifetime_sum")

    def state_from_all(
        self, components: Any = None, not_components: Any = None, *, inference_only: bool = False, **kwargs: Any
    ) -> dict[str, Any] | None:
        """Return RLlib's ``get_state()`` with weights gathered from all learners; None on all learners but the first."""
        first = self._learner_index == 0
        without = [not_components] if isinstance(not_components, str) else list(not_components or ())
        state: dict[str, Any] = self.get_state(components, not_components=[*without, COMPONENT_RL_MODULE], **kwargs)
        if self._check_component(COMPONENT_RL_MODULE, components, not_components):
            weights = self.policy.get_state(inference_only=inference_only, on_all_learners=True, keep=first)
            state[COMPONENT_RL_MODULE] = {DEFAULT_MODULE_ID: weights}
        return state if first else None

    def save_training_state(self, folder: str) -> None:
        """Write this learner's share of a checkpoint into ``folder``; called on all learners."""
        progress = {"weights_seq_no": self._weights_seq_no, "skipped_in_a_row": self._skipped_in_a_row}
        save_training_state(folder, self.policy, self.get_optimizer(DEFAULT_MODULE_ID), progress)

    def load_training_state(self, folder: str, num_env_steps: int) -> None:
        """Restore the state in ``folder``; ``num_env_steps``, sampled so far, determine a scheduled learning rate."""
        needs_base = self.settings.model.lora is not None or self.settings.objective.kl_coeff > 0
        optimizer = self.get_optimizer(DEFAULT_MODULE_ID)
        progress = load_training_state(folder, self.policy, optimizer, self._ranks, needs_base=needs_base)
        self._weights_seq_no, self._skipped_in_a_row = progress["weights_seq_no"], progress["skipped_in_a_row"]
        for scheduled, schedule in self._optimizer_lr_schedules.items():
            self._set_optimizer_lr(scheduled, schedule.update(timestep=num_env_steps))

    @override(TorchLearner)
    def _get_optimizer_state(self) -> StateDict:
        """Copy tensors as torch tensors, float32 masters included: RLlib would convert them to numpy, which has no bfloat16."""
        return {name: copied(optimizer.state_dict()) for name, optimizer in self._named_optimizers.items()}

    @override(TorchLearner)
    def _set_optimizer_state(self, state: StateDict) -> None:
        for name, optimizer in self._named_optimizers.items():
            given, held = copied(state[name]), [tensor for group in optimizer.param_groups for tensor in group["params"]]
            for index, entries in given["state"].items():
                like = held[index]
                for entry, value in entries.items():
                    entries[entry] = shard_like(value, like) if value.shape == like.shape else value
            optimizer.load_state_dict(given)

    @override(Learner)
    def set_state(self, state: StateDict) -> None:
        """Restore a state of any weight version: RLlib alone would keep the present weights if the restored ones are older."""
        if WEIGHTS_SEQ_NO in state:
            self._weights_seq_no = -1
        super().set_state(state)
