"""Keys of the update, of off-policy trajectories and of the run, RLlib's keys that matter here, and all settings together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rapo_rllib.settings.buffer import BufferSettings
from rapo_rllib.settings.knobs import Knobs, knob, shown
from rapo_rllib.settings.model import EngineSettings, ModelSettings, WarmStartSettings
from rapo_rllib.settings.objective import ObjectiveSettings
from rapo_rllib.settings.rollout import ProtocolSettings, RolloutSettings
from rapo_rllib.settings.schedule import check_schedule, check_share


def _check_env(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, type) and not (isinstance(value, str) and value):
        raise ValueError(f"{name} = {shown(value)}: must be an environment's id, an import path, or a class")


@dataclass(frozen=True)
class UpdateSettings(Knobs):
    """One training step: its questions, the learner's passes, and the transfer of weights to the engines."""

    questions_per_step: int = knob(32, "questions of one training step (paper: 32)", at_least=1)
    dynamic_sampling: bool = knob(False, "replace groups with equal rewards by others (DAPO)")
    num_minibatches: int = knob(2, "optimiser steps per epoch; a minibatch holds whole groups (paper: 2)", at_least=1)
    max_tokens_per_micro_batch: int = knob(8192, "most tokens of one forward and backward pass", at_least=1)
    old_logprobs: Literal["auto", "rollout", "learner"] = knob(
        "auto",
        "`π_old`: the engine's (`rollout`) or the `learner`'s; `auto`: the learner's with one minibatch and `max_staleness` 0 "
        "(no extra pass), and with `max_staleness` above 1",
    )
    weight_decay: float = knob(0.01, "weight decay of AdamW", at_least=0)
    learner_num_threads: int | None = knob(None, "CPU threads of a learner; None: all cores if it is local", at_least=1)
    learner_parallelism: Literal["ddp", "fsdp"] = knob(
        "ddp", "each of several learners holds all weights (`ddp`), or a shard of them (`fsdp`: FSDP2)"
    )
    weight_transfer: Literal["auto", "object_store", "nccl", "ipc"] = knob(
        "auto",
        "how weights reach engines in other processes: `object_store` (Ray's), `nccl` (GPU to GPU) or `ipc` (learner and "
        "engine share a GPU), both by vLLM; `auto`: `nccl` if engines and learners have whole GPUs, else `object_store`",
    )
    max_staleness: int = knob(
        0,
        "most updates between the weights that began a group and those that train on it; 0: on-policy, rollouts and updates "
        "alternate; above: rollouts go on during updates, and take new weights on the way",
        at_least=0,
    )
    stale_groups: Literal["drop", "wait"] = knob(
        "drop",
        "groups older than `max_staleness`: `drop` them and ask their questions again, or let the update `wait` for them",
    )


@dataclass(frozen=True)
class OffPolicySettings(Knobs):
    """Trajectories of others that train beside the policy's own. algorithm.md section 11."""

    off_policy_trajectories: int = knob(
        0, "trajectories of others that join each group before advantages are computed, in addition to `G`", at_least=0
    )
    off_policy_source: Literal["expert", "replay"] = knob(
        "expert", "their source: an `expert` (LUFFY; for single steps, its step), or the policy's earlier successes (`replay`)"
    )
    expert_start_share: float = knob(
        0.0,
        "share of the groups that may begin behind an expert's first steps for their question, as far as single steps leave "
        "room; the number of steps given follows where outcomes of groups differ",
        at_least=0,
        at_most=1,
    )
    expert_step_share: float | tuple = knob(
        0.0,
        "share of the groups that are single steps: continue an expert's trajectory of any question, and be right if the step "
        "does what the expert did; or a schedule `[[env steps sampled, share], ...]`",
        rule="between 0 and 1 or a schedule",
        check=check_share,
    )
    expert_traces: str = knob("expert", "trajectories for all three: the environment's `expert`, or a .jsonl[.gz] file")

    @property
    def mixes_expert(self) -> bool:
        """Whether an expert's trajectories are members of groups."""
        return self.off_policy_trajectories > 0 and self.off_policy_source == "expert"

    @property
    def needs_expert(self) -> bool:
        """Whether the job needs trajectories of an expert."""
        return self.mixes_expert or bool(self.expert_start_share or self.expert_step_share)


@dataclass(frozen=True)
class RunSettings(Knobs):
    """The files that a run keeps, its evaluation, and its end."""

    preset: Any = knob(
        None,
        "name that sets the keys not given: an algorithm (`grpo`, `dapo`, ...), `released_code`, or an ablation of the paper",
        rule="a preset's name or null",
    )
    buffer_growth: Literal["none", "successful", "advantage"] = knob(
        "none",
        "steps of the policy that enter the buffer: `none`, those of `successful` trajectories, or of those with a positive "
        "`advantage`; see docs/buffer.md",
    )
    export_with_checkpoints: bool = knob(True, "write the policy as a Hugging Face folder into every checkpoint")
    evaluate_before_training: bool = knob(True, "with `evaluation_interval`: evaluate before the first training step, too")
    transcripts: bool | int = knob(
        False,
        "write every trajectory as a JSON line into the trial's folder; a number: keep only the newest iterations",
        at_least=1,
    )
    time_budget_s: float | None = knob(
        None, "end the training after about so many seconds, the last evaluation included; None: no limit", at_least=1
    )


@dataclass(frozen=True)
class RLlibSettings(Knobs):
    """Any key of RLlib's `AlgorithmConfig` may be set; these are the ones that matter here, with RAPO's defaults."""

    env: Any = knob(
        None,
        "id of an environment (`rapo/word_problems`, `rapo/questions`, or your own); beside `config` in a job file",
        check=_check_env,
    )
    env_config: dict = knob(dict, "keys of the environment (tables above)")
    lr: Any = knob(
        1e-6,
        "learning rate of AdamW, or a schedule `[[env steps, rate], ...]` (paper: 1e-6)",
        rule="at least 0 or a schedule",
        check=check_schedule,
    )
    num_epochs: int = knob(1, "passes over the groups of one training step (paper: 1)", at_least=1)
    grad_clip: float | None = knob(1.0, "maximal global norm of the gradient; None: no limit", at_least=1e-12)
    num_env_runners: int = knob(0, "vLLM engines in processes of their own; 0: one in the driver's process", at_least=0)
    num_gpus_per_env_runner: float = knob(0, "GPUs of each env runner; 0: vLLM on the CPU", at_least=0)
    num_learners: int = knob(0, "learners in processes of their own; 0: one in the driver's process", at_least=0)
    num_gpus_per_learner: float = knob(0, "GPUs of each learner; 0: on the CPU", at_least=0)
    evaluation_interval: int | None = knob(
        None, "evaluate on the test questions every so many training steps; None: never", at_least=0
    )
    evaluation_duration: int = knob(
        10, "test questions of one evaluation, over all data sets, with one greedy trajectory each", at_least=1
    )
    evaluation_config: dict | None = knob(None, "keys that differ in evaluation; needs `evaluation_num_env_runners`")
    evaluation_num_env_runners: int = knob(0, "engines that only evaluate; 0: those that train do", at_least=0)
    restart_failed_env_runners: bool = knob(True, "start an engine that died anew, and send it the weights")
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
    """All settings of one job, each checked; ``config/settings.py`` makes them from the keys of a config."""

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
        """``old_logprobs`` with ``auto`` resolved: π_old is the engine's (``rollout``) or the learner's (``learner``).

        With one minibatch the learner's comes with its first forward pass. With ``max_staleness`` 1 the policy that sampled
        is an update older, so the ratio to it tells how far the policy has moved, which the clip is to bound. With more, tokens
        of one trajectory are of several versions: the clip bounds the move of this update alone, and the truncated ratio of
        ``importance_cap`` corrects the difference between the learner and the weights that sampled each token.
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
