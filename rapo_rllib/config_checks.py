"""What a ``RAPOConfig`` refuses: unknown keys with the nearest valid one, and values that cannot work together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from rapo_rllib.unknown_keys import refuse_unknown_keys


def known_keys(config: Any) -> set[str]:
    """Every key that a dictionary for this ``AlgorithmConfig`` may hold: attributes, properties, and RLlib's special ones."""
    properties = {name for name in dir(type(config)) if isinstance(getattr(type(config), name), property)}
    public = {key.removeprefix("_") for key in vars(config) if key.removeprefix("_") in properties}
    return {*vars(config), *public, "env", "model", "multiagent", "_enable_new_api_stack"}


def settings_from(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """A frozen settings object of ``cls`` from a user's dictionary, unknown keys refused."""
    refuse_unknown_keys(values, [field.name for field in fields(cls)], where=f"{where}.")
    return cls(**values)


def check_range(name: str, value: Any, low: float, high: float = float("inf"), *, integer: bool = False) -> None:
    """Raise ``ValueError`` unless ``low <= value <= high`` (and a whole number, if asked)."""
    kind = int if integer else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        bounds = f"at least {low}" if high == float("inf") else f"between {low} and {high}"
        raise ValueError(f"{name} = {value!r}: must be {'a whole number ' if integer else ''}{bounds}")


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: must be one of {', '.join(map(repr, choices))}")


def check_rapo_values(config: Any) -> None:
    """Every hyper-parameter of RAPO on its own, then those that must fit together."""
    for name in ("questions_per_step", "group_size", "num_minibatches", "max_sampling_rounds", "tool_workers"):
        check_range(name, getattr(config, name), 1, integer=True)
    for name in ("max_prompt_tokens", "max_response_tokens", "max_tokens_per_micro_batch"):
        check_range(name, getattr(config, name), 1, integer=True)
    for name in ("num_hybrid", "max_tool_calls", "max_skipped_updates"):
        check_range(name, getattr(config, name), 0, integer=True)
    for name in ("clip_low", "clip_high", "kl_coeff", "weight_decay", "importance_shaping_weight", "canary_tolerance"):
        check_range(name, getattr(config, name), 0)
    check_range("advantage_epsilon", config.advantage_epsilon, 1e-12)
    check_range("retrieval_advantage_weight", config.retrieval_advantage_weight, -1e3, 1e3)
    check_range("temperature", config.temperature, 1e-3)
    check_range("max_retrieval_failure_share", config.max_retrieval_failure_share, 0, 1)
    check_choice("loss_aggregation", config.loss_aggregation, ("trajectory", "token"))
    check_choice("old_logprobs", config.old_logprobs, ("rollout", "learner"))
    for name in ("max_step_tokens", "time_budget_s", "importance_cap", "dual_clip"):
        if getattr(config, name) is not None:
            check_range(name, getattr(config, name), 1)
    _check_schedule(config.retrieval_prob)
    _check_together(config)


def _check_schedule(value: Any) -> None:
    points = value if isinstance(value, (list, tuple)) else [[0, value]]
    for point in points:
        if not isinstance(point, (list, tuple)) or len(point) != 2:
            raise ValueError(f"retrieval_prob = {value!r}: must be a number or a schedule [[env steps, number], ...]")
        check_range("retrieval_prob", point[1], 0, 1)
    if points[0][0] != 0 or any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
        raise ValueError(f"retrieval_prob = {value!r}: a schedule starts at env step 0 and its steps increase")


def _check_together(config: Any) -> None:
    if config.evaluation_parallel_to_training:
        raise ValueError("evaluation_parallel_to_training = True: evaluation needs weights that stand still; set it to false")
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
    if config.num_hybrid and config.max_tool_calls == 0:
        raise ValueError("num_hybrid > 0 with max_tool_calls = 0: without a completed tool step nothing is ever retrieved")
    longest = config.max_prompt_tokens + config.max_response_tokens
    limit = config.engine_settings.max_model_len
    if limit is not None and limit < longest:
        raise ValueError(
            f"engine.max_model_len = {limit} is less than max_prompt_tokens + max_response_tokens = {longest}: raise it, or "
            "leave it out"
        )
