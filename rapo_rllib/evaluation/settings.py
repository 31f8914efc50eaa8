"""Settings that a model's answers depend on beside the model: protocol, budgets, tools, reward, sampling, engine, buffer.

    config of a job or of a checkpoint's run -> for_benchmarks -> evaluation_config -> resolved_settings -> results.json

One config is the source for all models of a comparison (``cli/evaluate/settings_source.py``), so that nothing else differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from rapo_rllib.agents.setup import AgentChoice, fingerprint_fields
from rapo_rllib.config.question_source import QuestionSource, is_tool_env
from rapo_rllib.monitoring.metrics_flat import flattened

if TYPE_CHECKING:
    from rapo_rllib.envs.benchmarks import Benchmark
    from rapo_rllib.evaluation.plan import EvaluationPlan
    from rapo_rllib.settings import Settings

ENV = "rapo/questions"
ENV_KEYS = (
    "max_tool_calls",
    "protocol",
    "read_answer",
    "require_boxed",
    "reward",
    "tools",
)  # of env_config that an evaluation takes over
_NOT_OF_ANSWERS = ("timeout_s", "traces", "max_traces", "growth", "max_grown")
_OF_RETRIEVAL = ("retrieval_level", "retrieval_budget", "retrieval_noise")


class JobConfig(Protocol):
    """The part of a ``RAPOConfig``, which a higher layer has, that an evaluation reads and changes."""

    env: Any
    env_config: dict[Any, Any]
    language_model: dict[str, Any]
    num_hybrid: int
    branching: Any

    @property
    def settings(self) -> Settings:
        """Frozen and checked."""

    @property
    def question_source(self) -> QuestionSource:
        """Of ``env`` and ``env_config``."""

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """RLlib's."""


Config = TypeVar("Config", bound=JobConfig)


def for_benchmarks(base: Config) -> Config:
    """A copy of ``base`` with the benchmarks' environment, and of its own ``env_config`` what means the same there."""
    config = base.copy(copy_frozen=False)
    own: Mapping[str, Any] = base.env_config if base.env is None or is_tool_env(base.env) else {}
    # env_config of the job would be merged into
    config.env, config.env_config = ENV, {key: own[key] for key in ENV_KEYS if key in own}
    return config


def evaluation_config(base: JobConfig, tools: Sequence[Any], scorer: Any) -> JobConfig:
    """``base`` with the benchmarks' environment in place of its own, and without retrieval."""
    config = for_benchmarks(base)
    # questions are handed over: none are loaded
    config.env_config = {**config.env_config, "dataset": "gsm8k", "tools": list(tools), "scorer": scorer}
    config.num_hybrid, config.branching = 0, None
    return config


def benchmark_tools(base: JobConfig, plan: EvaluationPlan, benchmark: Benchmark) -> list[Any]:
    """The tools that a benchmark is answered with: those asked for, else the job's, else its own."""
    if plan.tools is not None:
        return list(plan.tools)
    return list(for_benchmarks(base).env_config.get("tools", benchmark.tools))


def resolved_settings(base: JobConfig, choice: AgentChoice, plan: EvaluationPlan) -> dict[str, Any]:
    """All of them with their values, as JSON has them."""
    config = evaluation_config(base, [], plan.scorer)
    found = fingerprint_fields(config.settings, config.question_source, choice)
    for key in ("dataset", "tools"):
        del found["env_config"][key]
    found["tools"] = {asked.benchmark.name: benchmark_tools(base, plan, asked.benchmark) for asked in plan.asked}
    if plan.retrieval_prob:
        buffer = asdict(base.settings.buffer)
        found["step_trace_buffer"] = {key: value for key, value in buffer.items() if key not in _NOT_OF_ANSWERS}
        found |= {key: getattr(base, key) for key in _OF_RETRIEVAL}
    as_json: dict[str, Any] = json.loads(json.dumps(found, sort_keys=True, default=str))
    return as_json


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Names of the settings that are not the same in both, dotted where they lie in another.

    >>> differing({"seed": 0, "protocol": {"format": "tags"}}, {"seed": 0, "protocol": {"format": "native"}})
    ['protocol.format']
    """
    ours, theirs = flattened(first, "."), flattened(second, ".")
    return sorted(key for key in {*ours, *theirs} if key not in ours or key not in theirs or ours[key] != theirs[key])
