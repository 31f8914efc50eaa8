"""What a ``RAPOConfig`` refuses: unknown keys with the nearest valid one, and values that cannot work together."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from rapo_rllib.config.presets import check_preset
from rapo_rllib.config.types import check_types
from rapo_rllib.objective.aggregation import LOSS_AGGREGATIONS
from rapo_rllib.objective.clipping import CLIP_MODES
from rapo_rllib.objective.entropy import STEP_REDUCTIONS
from rapo_rllib.objective.importance import IMPORTANCE_LEVELS, SHAPING_ORDERS
from rapo_rllib.objective.retrieval_reward import RETRIEVAL_BASELINES, RETRIEVAL_QUALITIES, RETRIEVAL_TIMINGS
from rapo_rllib.rollout.unaided import SHOWN_STEPS
from rapo_rllib.services.credentials import TOKEN_VARIABLE, check_no_secret
from rapo_rllib.settings import ALL_LINEAR, EngineSettings, LoraSettings, ModelSettings, ObjectiveSettings
from rapo_rllib.validation import refuse_unknown_keys
from rapo_rllib.weights.sync import TRANSFERS, VLLM_TRANSFERS

_CHOICES = {
    "loss_aggregation": LOSS_AGGREGATIONS,
    "importance_level": IMPORTANCE_LEVELS,
    "clip_mode": tuple(CLIP_MODES),
    "off_policy_source": ("expert", "replay"),
    "old_logprobs": ("auto", "rollout", "learner"),
    "shaping_order": SHAPING_ORDERS,
    "step_entropy_reduction": STEP_REDUCTIONS,
    "retrieval_quality": RETRIEVAL_QUALITIES,
    "retrieval_baseline": RETRIEVAL_BASELINES,
    "retrieval_timing": RETRIEVAL_TIMINGS,
    "retrieval_level": ("step", "trajectory"),
    "retrieval_query": ("history", "generated"),
    "retrieval_budget": ("response", "prompt_and_response"),
    "rollout_schedule": ("continuous", "lockstep"),
    "branch_advantage": ("soft", "hard"),
    "weight_transfer": TRANSFERS,
    "buffer_growth": ("none", "successful", "advantage"),
    "learner_parallelism": ("ddp", "fsdp"),
    **dict.fromkeys(
        (
            *("export_with_checkpoints", "evaluate_before_training", "one_step_off", "dynamic_sampling"),
            *("transcripts", "mask_truncated", "normalize_std", "restart_failed_env_runners", "ignore_env_runner_failures"),
        ),
        (True, False),
    ),
}

_COUNTS = (  # whole numbers of 1 or more
    *("questions_per_step", "group_size", "num_minibatches", "max_sampling_rounds", "tool_workers"),
    *("max_consecutive_nan", "num_epochs", "evaluation_duration"),
    *("max_prompt_tokens", "max_response_tokens", "max_tokens_per_micro_batch", "replay_per_question", "replay_capacity"),
)


def known_keys(config: Any) -> set[str]:
    """Every key that a dictionary for this ``AlgorithmConfig`` may hold: attributes, properties, and RLlib's special ones."""
    properties = {name for name in dir(type(config)) if isinstance(getattr(type(config), name), property)}
    public = {key.removeprefix("_") for key in vars(config) if key.removeprefix("_") in properties}
    return {*vars(config), *public, "env", "model", "multiagent", "_enable_new_api_stack"}


def settings_from(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """A frozen settings object of ``cls`` from a user's dictionary; unknown keys and values of another type are refused."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} = {values!r}: must be a mapping of {', '.join(field.name for field in fields(cls))}")
    refuse_unknown_keys(values, [field.name for field in fields(cls)], where=f"{where}.")
    if cls.__module__ == ModelSettings.__module__:  # others' annotations are theirs
        check_types(cls, values, where)
    return cls(**values)


def refuse_token(step_trace_buffer: Any) -> None:
    """Raise ``ValueError`` if the mapping holds a server's token itself; it is not repeated."""
    if isinstance(step_trace_buffer, Mapping) and step_trace_buffer.get("token"):
        raise ValueError(
            "step_trace_buffer.token (its value is not shown): what stands in a job reaches results, checkpoints and loggers. "
            f"Put it into the environment variable {TOKEN_VARIABLE} on every machine of the run, or into one that "
            "step_trace_buffer.token_env names, and take it out of the job"
        )


def check_range(name: str, value: Any, low: float, high: float = float("inf"), *, integer: bool = False) -> None:
    """Raise ``ValueError`` unless ``low <= value <= high`` (and a whole number, if asked)."""
    kind = int if integer else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        bounds = f"at least {low}" if high >= sys.float_info.max else f"between {low} and {high}"
        raise ValueError(f"{name} = {value!r}: must be {'a whole number ' if integer else ''}{bounds}")


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: must be one of {', '.join(map(repr, choices))}")


def check_rapo_values(config: Any) -> None:
    """Every hyper-parameter of RAPO on its own, then those that must fit together."""
    for name in _COUNTS:
        check_range(name, getattr(config, name), 1, integer=True)
    for name in ("num_hybrid", "max_tool_calls", "off_policy_trajectories"):
        check_range(name, getattr(config, name), 0, integer=True)
    for name in ("clip_low", "clip_high", "kl_coeff", "weight_decay", "importance_shaping_weight"):
        check_range(name, getattr(config, name), 0)
    if config.canary_tolerance is not None:
        check_range("canary_tolerance", config.canary_tolerance, 0)
    check_range("overlong_penalty", config.overlong_penalty, 0)
    check_range("overlong_buffer_share", config.overlong_buffer_share, 0, 1)
    check_range("advantage_epsilon", config.advantage_epsilon, 1e-12)
    check_range("retrieval_advantage_weight", config.retrieval_advantage_weight, -1e3, 1e3)
    check_range("temperature", config.temperature, 1e-3, 2.0)  # vLLM refuses requests above
    check_range("max_retrieval_failure_share", config.max_retrieval_failure_share, 0, 1)
    for name, choices in _CHOICES.items():
        check_choice(name, getattr(config, name), choices)
    _check_model(config.model_settings)
    _check_engine(config.engine_settings)
    for name in ("entropy_top_k", "step_entropy_tokens", "transcripts_to_keep"):
        if getattr(config, name) is not None:
            check_range(name, getattr(config, name), 1, integer=True)
    check_range("retrieval_noise", config.retrieval_noise, 0, 1)
    _check_preset(config)
    _check_branching(config)
    _check_warm_start(config)
    for name in ("max_step_tokens", "max_steps", "time_budget_s", "importance_cap", "dual_clip"):
        if getattr(config, name) is not None:
            check_range(name, getattr(config, name), 1)
    check_schedule("retrieval_prob", config.retrieval_prob, 1)
    check_schedule("lr", config.lr)
    _check_rllib_values(config)
    _check_together(config)
    _check_objective_parts(config)


def _check_clip_room(config: Any) -> None:
    """Shaping and clip: what eq. 8 does to a ratio of 1 must not pass a bound."""
    weight = config.importance_shaping_weight
    if not config.num_hybrid or config.shaping_order == "after_clip":
        return
    for name, bound in (("clip_high", config.clip_high), ("dual_clip", (config.dual_clip or float("inf")) - 1)):
        if weight > bound:
            raise ValueError(
                f"importance_shaping_weight = {weight} with {name} = {getattr(config, name)}: shaping alone can pass the clip, "
                "and trajectories that retrieved have no gradient then; set shaping_order to 'after_clip'"
            )


def _check_cap(config: Any) -> None:
    cap = config.importance_cap
    if config.old_policy == "rollout" and cap not in (None, ObjectiveSettings.importance_cap):
        raise ValueError(
            f"importance_cap = {cap} with old_logprobs = {config.old_logprobs!r} and num_minibatches = "
            f"{config.num_minibatches}: π_old is the engine's, so there is nothing to truncate; set old_logprobs to 'learner', "
            "or leave importance_cap out"
        )


def _check_objective_parts(config: Any) -> None:
    """Parts of the loss that mean nothing together."""
    _check_clip_room(config)
    _check_cap(config)
    sequence = config.importance_level != "token"
    if config.off_policy_shaping is not None:
        check_range("off_policy_shaping", config.off_policy_shaping, 1e-6)
    if config.clip_mode == "gradient_preserving" and config.dual_clip is not None:
        raise ValueError(
            f"clip_mode = 'gradient_preserving' with dual_clip = {config.dual_clip}: the dual clip cuts off a gradient that is "
            "to be preserved; set dual_clip to null"
        )
    if config.importance_level == "sequence" and config.branch_advantage == "hard":
        raise ValueError(
            "importance_level = 'sequence' with branch_advantage = 'hard': one ratio for all tokens trains each by the mean of "
            "their advantages; set importance_level to 'sequence_token'"
        )
    if sequence and config.off_policy_trajectories and config.off_policy_source == "expert":
        raise ValueError(
            f"importance_level = {config.importance_level!r} with off_policy_source = 'expert': what an expert wrote has no "
            "probabilities that a sequence's ratio could be taken to; set importance_level to 'token'"
        )
    _check_shown_steps(config, sequence)
    if sequence and config.off_policy_trajectories and config.off_policy_shaping is not None:
        raise ValueError(
            f"importance_level = {config.importance_level!r} with off_policy_shaping = {config.off_policy_shaping}: the "
            "shaping is of a token's ratio; set off_policy_shaping to null"
        )


def _check_shown_steps(config: Any, sequence: bool) -> None:
    """What is learned of shown steps has no probabilities of its own, and is of single steps."""
    how = config.shown_steps
    check_choice("shown_steps", how, SHOWN_STEPS)
    if how == "context":
        return
    if sequence or config.off_policy_shaping is None:
        key, value = ("importance_level", "token") if sequence else ("off_policy_shaping", 0.1)
        raise ValueError(
            f"shown_steps = {how!r} with {key} = {getattr(config, key)!r}: its tokens were sampled in another context, or not "
            f"at all, so they have no probabilities that a ratio could be taken to; set {key} to {value!r}"
        )
    if how in ("imitated", "own") and config.retrieval_level != "step":
        raise ValueError(
            f"shown_steps = {how!r} with retrieval_level = {config.retrieval_level!r}: only single steps have a form of the "
            "policy's own; set shown_steps to 'removed', or train on whole trajectories with off_policy_trajectories"
        )


def _check_model(model: ModelSettings) -> None:
    check_choice("model.attention", model.attention, ("auto", "sdpa", "flex"))
    check_choice("model.gradient_checkpointing", model.gradient_checkpointing, (False, True, "selective"))
    check_choice("model.master_weights", model.master_weights, (None, "float32"))
    check_range("model.logits_chunk_size", model.logits_chunk_size, 1, integer=True)
    if model.lora is not None:
        _check_lora(model.lora)


def _check_engine(engine: EngineSettings) -> None:
    check_no_secret(engine.extra, "engine.extra", "set HF_TOKEN in the environment of every machine")
    for name in ("max_num_seqs", "tensor_parallel_size"):
        check_range(f"engine.{name}", getattr(engine, name), 1, integer=True)
    check_range("engine.gpu_memory_utilization", engine.gpu_memory_utilization, 1e-3, 1)
    check_range("engine.kv_cache_gib", engine.kv_cache_gib, 1e-3)


def _check_lora(lora: LoraSettings) -> None:
    check_range("model.lora.rank", lora.rank, 1, integer=True)
    check_range("model.lora.alpha", lora.alpha, 1e-6)
    check_choice("model.lora.use_rslora", lora.use_rslora, (False, True))
    check_range("model.lora.dropout", lora.dropout, 0, 1)
    if lora.dropout:
        raise ValueError(
            f"model.lora.dropout = {lora.dropout}: the engine samples without dropout, so the ratio of new to old "
            "probabilities would compare two different policies, and clip their difference; leave it out"
        )
    targets = lora.target_modules
    if targets != ALL_LINEAR and (
        not isinstance(targets, tuple) or not targets or not all(isinstance(t, str) for t in targets)
    ):
        raise ValueError(
            f"model.lora.target_modules = {targets!r}: must be {ALL_LINEAR!r}, or a list of linear layers' names such as "
            "[q_proj, v_proj]"
        )


def _check_branching(config: Any) -> None:
    branching = config.rollout_settings.branching
    if branching is None:
        return
    if branching.initial is not None:
        check_range("branching.initial", branching.initial, 1, config.group_size, integer=True)
    check_range("branching.branches", branching.branches, 2, integer=True)
    check_range("branching.entropy_tokens", branching.entropy_tokens, 1, integer=True)
    for name in ("base_prob", "threshold"):
        check_range(f"branching.{name}", getattr(branching, name), 0, 1)
    check_range("branching.entropy_weight", branching.entropy_weight, -1e3, 1e3)
    check_choice("branching.rule", branching.rule, ("threshold", "coin"))


def _check_warm_start(config: Any) -> None:
    settings = config.warm_start_settings
    if settings is None:
        return
    for name in ("num_trajectories", "num_epochs", "batch_size"):
        check_range(f"warm_start.{name}", getattr(settings, name), 1, integer=True)
    for name in ("shown_share", "fitting_share"):
        check_range(f"warm_start.{name}", getattr(settings, name), 0, 1)
    check_range("warm_start.lr", settings.lr, 1e-12)
    check_range("warm_start.seed", settings.seed, 0, integer=True)


def _check_preset(config: Any) -> None:
    check_preset(config.preset)
    if config.preset != config._applied_preset:
        raise ValueError(f"preset = {config.preset!r} was set but not applied: give it to training() or update_from_dict()")


def _check_rllib_values(config: Any) -> None:
    """RLlib's own numbers, which it takes as they come."""
    for name in ("num_env_runners", "num_learners", "evaluation_num_env_runners"):
        check_range(name, getattr(config, name), 0, integer=True)
    for name, low in (("evaluation_interval", 0), ("seed", 0), ("learner_num_threads", 1)):
        if getattr(config, name) is not None:
            check_range(name, getattr(config, name), low, integer=True)
    if config.grad_clip is not None:
        check_range("grad_clip", config.grad_clip, 1e-12)
    betas = config.adam_betas
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        raise ValueError(f"adam_betas = {betas!r}: must be two numbers between 0 and 1, as [0.9, 0.999]")
    for beta in betas:
        check_range("adam_betas", beta, 0, 1 - 1e-12)
    for name in ("sample_timeout_s", "evaluation_sample_timeout_s", "step_timeout_s"):
        check_range(name, getattr(config, name), 1e-3)


def check_schedule(name: str, value: Any, high: float = sys.float_info.max) -> None:
    """A number from 0 to ``high``, or points of one over env steps."""
    points = value if isinstance(value, (list, tuple)) else [[0, value]]
    for point in points:
        if not isinstance(point, (list, tuple)) or len(point) != 2:
            raise ValueError(f"{name} = {value!r}: must be a number or a schedule [[env steps, number], ...]")
        check_range(f"env steps of {name}", point[0], 0)
        check_range(name, point[1], 0, high)
    if not points or points[0][0] != 0 or any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
        raise ValueError(f"{name} = {value!r}: a schedule starts at env step 0 and its steps increase")


def _check_transfer(config: Any) -> None:
    """vLLM's own transfer of weights."""
    if config.weight_transfer not in VLLM_TRANSFERS:
        return
    if not (_has_env_runners(config) and config.num_gpus_per_env_runner and config.num_gpus_per_learner):
        raise ValueError(
            f"weight_transfer = {config.weight_transfer!r} goes from GPU to GPU: set num_env_runners, num_gpus_per_env_runner "
            "and num_gpus_per_learner, or leave it out"
        )
    if config.model_settings.lora is not None:
        raise ValueError(
            f"weight_transfer = {config.weight_transfer!r} with model.lora: vLLM's transfer sends whole weights, and only "
            "adapters are to travel; set weight_transfer to 'auto' or 'object_store'"
        )


def _has_env_runners(config: Any) -> bool:
    """Engines in other processes. Evaluation may have none of its own, and uses those that train."""
    return bool(config.num_env_runners) or config.in_evaluation


def _check_together(config: Any) -> None:
    _check_transfer(config)
    if config.one_step_off and not _has_env_runners(config):
        raise ValueError(
            "one_step_off = True with num_env_runners = 0: engine and learner take turns in one process; set num_env_runners "
            "to 1 or more"
        )
    if config.engine_settings.sleep and (config.one_step_off or not config.num_gpus_per_env_runner):
        raise ValueError(
            "engine.sleep = True is for a GPU that engine and learner share and use in turn: set num_gpus_per_env_runner and "
            "num_gpus_per_learner (fractions of one), leave one_step_off out; or leave engine.sleep out"
        )
    if config.num_hybrid > config.group_size:
        raise ValueError(f"num_hybrid = {config.num_hybrid} is more than group_size = {config.group_size}: lower num_hybrid")
    if config.num_minibatches > config.questions_per_step:
        raise ValueError(
            f"num_minibatches = {config.num_minibatches} is more than questions_per_step = {config.questions_per_step}: "
            "a minibatch holds at least one whole group"
        )
    if config.num_learners > config.questions_per_step:
        raise ValueError(
            f"num_learners = {config.num_learners} is more than questions_per_step = {config.questions_per_step}: "
            "whole groups are dealt out, so some learners would never work; raise questions_per_step"
        )
    if config.num_hybrid and config.max_tool_calls == 0 and config.retrieval_level == "step":
        raise ValueError("num_hybrid > 0 with max_tool_calls = 0: without a completed tool step nothing is ever retrieved")
    longest = config.max_prompt_tokens + config.max_response_tokens
    limit = config.engine_settings.max_model_len
    if limit is not None and limit < longest:
        raise ValueError(
            f"engine.max_model_len = {limit} is less than max_prompt_tokens + max_response_tokens = {longest}: raise it, or "
            "leave it out"
        )
