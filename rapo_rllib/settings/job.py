"""Keys of the update and of the run, those of RLlib's that matter here, and all settings of a job together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal

from rapo_rllib.settings.buffer import BufferSettings
from rapo_rllib.settings.knobs import Knobs, knob, shown
from rapo_rllib.settings.model import EngineSettings, ModelSettings, WarmStartSettings
from rapo_rllib.settings.objective import ObjectiveSettings
from rapo_rllib.settings.rollout import ProtocolSettings, RolloutSettings
from rapo_rllib.settings.schedule import check_schedule, check_share


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping | NoneType) and not hasattr(value, "to_dict"):  # a config is one, too
        raise ValueError(f"{name} = {shown(value)}: must be a mapping of keys, or null")


def _check_env_config(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} = {shown(value)}: must be a mapping of the environment's keys; leave it out for none")


def _check_env(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, type) and not (isinstance(value, str) and value):
        raise ValueError(f"{name} = {shown(value)}: must be an environment's id, an import path, or a class")


def _check_callbacks(name: str, value: Any) -> None:
    listed = value if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(callable(one) or (isinstance(one, str) and one) for one in listed):
        raise ValueError(f"{name} = {shown(value)}: must be a class, or a list of classes")


@dataclass(frozen=True)
class UpdateSettings(Knobs):
    """One training step: what it asks, how the learner goes through it, and how weights reach the engines."""

    questions_per_step: int = knob(32, "questions of one training step (paper: 32)", at_least=1)
    dynamic_sampling: bool = knob(False, "drop groups with equal rewards and sample others in their place (DAPO)")
    num_minibatches: int = knob(2, "optimiser steps per epoch, by whole groups (paper: 2)", at_least=1)
    max_tokens_per_micro_batch: int = knob(8192, "tokens of one forward and backward pass", at_least=1)
    old_logprobs: Literal["auto", "rollout", "learner"] = knob(
        "auto",
        "`π_old` is the engine's (`rollout`) or the `learner`'s; `auto`: the learner's where that costs nothing, with one "
        "minibatch and `max_staleness` 0, and with `max_staleness` above 1",
    )
    weight_decay: float = knob(0.01, "of AdamW", at_least=0)
    learner_num_threads: int | None = knob(None, "CPU threads of a learner; None: all cores if it is local", at_least=1)
    learner_parallelism: Literal["ddp", "fsdp"] = knob(
        "ddp", "what several learners hold: all weights each (`ddp`), or shards of them (`fsdp`: FSDP2)"
    )
    weight_transfer: Literal["auto", "object_store", "nccl", "ipc"] = knob(
        "auto",
        "how weights reach engines in other processes: `auto` (`nccl` where engines and learners have whole GPUs, else "
        "`object_store`); `object_store`, Ray's; or vLLM's own from GPU to GPU: `nccl`, or `ipc` where a learner and an engine "
        "share each GPU",
    )
    max_staleness: int = knob(
        0,
        "updates that may lie between the weights that began a group and those that train on it; 0: on-policy, an update waits "
        "for its rollouts and they wait for the update; above: rollouts go on beside updates and change weights on the way",
        at_least=0,
    )
    stale_groups: Literal["drop", "wait"] = knob(
        "drop",
        "of groups that would get older than `max_staleness`: `drop` them, and ask their questions again; or let the update "
        "`wait` for them",
    )


@dataclass(frozen=True)
class OffPolicySettings(Knobs):
    """Trajectories of others that train beside the policy's own. algorithm.md section 11."""

    off_policy_trajectories: int = knob(
        0, "trajectories of others that join each group before its advantages, on top of `G`", at_least=0
    )
    off_policy_source: Literal["expert", "replay"] = knob(
        "expert",
        "whose: an `expert`'s (LUFFY; of a group of single steps, its step), or the policy's own earlier successes (`replay`)",
    )
    replay_choice: Literal["newest", "value"] = knob(
        "newest",
        "which are kept and replayed: the `newest`, any of them; or by `value`, those of the least entropy, and most often for "
        "questions that the group answers half of the time (ExGRPO)",
    )
    expert_start_share: float = knob(
        0.0,
        "share of the groups that may begin, all members alike, behind the first steps that an expert wrote for their "
        "question, as far as single steps leave room; how many is drawn by where the outcomes of groups differ now",
        at_least=0,
        at_most=1,
    )
    expert_step_share: float | tuple = knob(
        0.0,
        "share of the groups that are of single steps, behind the first steps of an expert's trajectory of any question, and "
        "right where they do what the expert did next; or a schedule `[[env steps sampled, share], ...]`",
        rule="between 0 and 1 or a schedule",
        check=check_share,
    )
    expert_traces: str = knob(
        "expert",
        "whose trajectories join groups, are begun behind, and give single steps: the environment's `expert`, or those of a "
        ".jsonl[.gz] file",
    )

    @property
    def mixes_expert(self) -> bool:
        """Whether an expert's trajectories are members of groups."""
        return self.off_policy_trajectories > 0 and self.off_policy_source == "expert"

    @property
    def needs_expert(self) -> bool:
        """Whether there must be trajectories of an expert."""
        return self.mixes_expert or bool(self.expert_start_share or self.expert_step_share)


@dataclass(frozen=True)
class RunSettings(Knobs):
    """The files that a run keeps, its evaluation, and its end."""

    preset: Any = knob(
        None,
        "one name for several keys, which those given beside it override: an algorithm (`grpo`, `dapo`, ...; "
        "`config/algorithm_presets.py`), `released_code` or an ablation of the paper (`config/presets.py`)",
        rule="a preset's name or null",
    )
    buffer_growth: Literal["none", "successful", "advantage"] = knob(
        "none",
        "which of the policy's own steps enter the buffer: `none`, those of `successful` trajectories, or of those with a "
        "positive `advantage`; see docs/buffer.md",
    )
    export_with_checkpoints: bool = knob(True, "put the policy as a Hugging Face folder into every checkpoint")
    evaluate_before_training: bool = knob(True, "evaluate the untrained policy too, before the first step")
    transcripts: bool | int = knob(
        False,
        "write every trajectory as a JSON line into the trial's folder; a number: those of so many newest iterations stay",
        at_least=1,
    )
    time_budget_s: float | None = knob(
        None, "end after about so many seconds, with a last evaluation inside them; None: no limit", at_least=1
    )


@dataclass(frozen=True)
class RLlibSettings(Knobs):
    """Any key of RLlib's `AlgorithmConfig` may be set; these are the ones that matter here, with RAPO's defaults."""

    env: Any = knob(
        None,
        "id of an environment: `rapo/word_problems`, `rapo/questions`, or your own; beside `config` in a job file",
        check=_check_env,
    )
    env_config: dict = knob(dict, "keys of the environment; those of ours are in the tables above", check=_check_env_config)
    lr: Any = knob(
        1e-6,
        "learning rate of AdamW, or a schedule `[[env steps, rate], ...]` (paper: 1e-6)",
        rule="at least 0 or a schedule",
        check=check_schedule,
    )
    num_epochs: int = knob(1, "passes over the groups of one training step (paper: 1)", at_least=1)
    grad_clip: float | None = knob(1.0, "largest global norm of the gradient; None: no limit", at_least=1e-12)
    num_env_runners: int = knob(0, "vLLM engines in processes of their own; 0: one in the driver's process", at_least=0)
    num_gpus_per_env_runner: float = knob(0, "GPUs of each; 0: vLLM on the CPU", at_least=0)
    num_cpus_per_env_runner: float = knob(1, "CPU cores that Ray reserves for each", at_least=0)
    num_learners: int = knob(0, "learners in processes of their own; 0: one in the driver's process", at_least=0)
    num_gpus_per_learner: float = knob(0, "GPUs of each; 0: on the CPU", at_least=0)
    num_cpus_per_learner: float | Literal["auto"] = knob("auto", "CPU cores that Ray reserves for each", at_least=0)
    evaluation_interval: int | None = knob(
        None, "evaluate on the test questions every so many training steps; None: never", at_least=0
    )
    evaluation_duration: int = knob(
        10, "test questions of one evaluation, of all data sets together, one greedy trajectory each", at_least=1
    )
    evaluation_config: Any = knob(
        None, "keys that differ in evaluation; needs `evaluation_num_env_runners`", check=_check_mapping
    )
    evaluation_num_env_runners: int = knob(0, "engines that only evaluate; 0: those that train do", at_least=0)
    callbacks_class: Any = knob(None, "a `RLlibCallback` of your own; episodes arrive as texts", check=_check_callbacks)
    restart_failed_env_runners: bool = knob(True, "start an engine that died anew, and send it the weights")
    ignore_env_runner_failures: bool = knob(False, "go on with the engines that are left")
    sample_timeout_s: float = knob(
        86400.0, "how long engines in processes of their own may take for the questions they are given at once", at_least=1e-3
    )
    evaluation_sample_timeout_s: float = knob(86400.0, "the same of an evaluation", at_least=1e-3)
    seed: int | None = knob(
        None,
        "of the order of the questions, and of sampling",
        at_least=0,
        at_most=2**32 - 1,
        rule="a whole number at least 0 or null",
    )
    log_level: Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"] | None = knob(None, "of RLlib's messages")


FLAT: tuple[type[Knobs], ...] = (RolloutSettings, ObjectiveSettings, UpdateSettings, OffPolicySettings, RunSettings)
NESTED: dict[str, type[Knobs]] = {
    "model": ModelSettings,
    "engine": EngineSettings,
    "protocol": ProtocolSettings,
    "step_trace_buffer": BufferSettings,
    "warm_start": WarmStartSettings,
}


@dataclass(frozen=True)
class Settings:
    """Every setting of one job, checked; ``config/settings.py`` makes it of a config's keys."""

    rollout: RolloutSettings
    objective: ObjectiveSettings
    update: UpdateSettings
    off_policy: OffPolicySettings
    run: RunSettings
    rllib: RLlibSettings
    model: ModelSettings
    engine: EngineSettings
    protocol: ProtocolSettings
    buffer: BufferSettings
    warm_start: WarmStartSettings | None = None

    @property
    def old_policy(self) -> str:
        """``old_logprobs`` with ``auto`` resolved: π_old is of the ``rollout`` (the engine's) or of the ``learner``.

        With one minibatch the learner's own come with its first forward pass. With ``max_staleness`` 1 the policy that sampled
        is an update older, so the ratio to it says how far the policy has moved, which the clip is to bound. With more, tokens
        of one trajectory are of several versions: the clip bounds the move of this update alone, and the truncated ratio of
        ``importance_cap`` takes what lies between the learner and the weights that sampled each token.
        """
        update = self.update
        if update.old_logprobs != "auto":
            return update.old_logprobs
        if update.max_staleness > 1:
            return "learner"
        return "learner" if update.num_minibatches == 1 and not update.max_staleness else "rollout"

    @property
    def uses_retrieval(self) -> bool:
        """Whether any trajectory can ever retrieve."""
        return self.rollout.num_hybrid > 0 and self.rollout.retrieval_prob != 0
