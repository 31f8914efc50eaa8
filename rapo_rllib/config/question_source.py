"""Make environments and questions from the ``env`` key: a gymnasium id, a name registered with Tune, or a class.

An environment with the classmethod ``questions(env_config, split)`` brings its own questions. In any other text environment,
each question is a seed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry

from rapo_rllib.config.presets import merge_over_preset
from rapo_rllib.config.settings import protocol_of
from rapo_rllib.envs.base import SeedQuestions, TextEnv
from rapo_rllib.envs.external.base import ExternalEnv
from rapo_rllib.envs.options import ToolEnvOptions
from rapo_rllib.envs.questions import QuestionsOptions
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.models.loading import load_tokenizer
from rapo_rllib.protocol.make import RolloutProtocol, make_protocol
from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader
from rapo_rllib.settings import Settings
from rapo_rllib.traces.recorded import read_trace_file
from rapo_rllib.types import ExpertTrajectory, Question

DEFAULT_NUM_SEEDS = 10_000


@dataclass(frozen=True)
class QuestionSource:
    """The source of questions, of environments to ask them in, and of an expert's trajectories."""

    env: Any  # a gymnasium id, a name that is registered with Tune, or a class
    options: Mapping[str, Any]  # its ``env_config``, with preset, tool budget and protocol if it is one of ours

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> QuestionSource:
        """Make the source of a config with the attributes ``keys``. The options of a foreign environment stay as they are."""
        env, options = keys["env"], dict(keys["env_config"])
        if is_tool_env(env):
            options = merge_over_preset(keys["_applied_preset"], "env_config", options)
            options.setdefault("max_tool_calls", keys["max_tool_calls"])
        if is_tool_env(env) or _is(env, ExternalEnv):
            options.setdefault("protocol", protocol_of(keys))
        return cls(env, options)

    def over(self, options: Mapping[str, Any]) -> QuestionSource:
        """Return the question source with some options replaced."""
        return replace(self, options={**self.options, **options})

    def env_maker(self) -> Callable[[], gymnasium.Env]:
        """Return a function that makes one environment.

        Raises:
            ValueError: ``env`` is missing or names nothing that is registered, or would ignore a key of ours.
        """
        env, options = self.env, dict(self.options)
        if env is None:
            raise ValueError("env is missing: name a text environment, for example env: rapo/word_problems")
        if (cls := _env_class(env)) is not None:
            check_env_keys(cls, options)
        if isinstance(env, type):
            return lambda: env(options)
        if _global_registry.contains(ENV_CREATOR, env):
            creator = _global_registry.get(ENV_CREATOR, env)
            return lambda: _checked(creator(EnvContext(options, worker_index=0)), options)
        if env not in gymnasium.registry:
            ours = [name for name in gymnasium.registry if name.startswith("rapo/")]
            raise ValueError(f"env = {env!r} is neither a gymnasium id nor registered with Tune; ours are {', '.join(ours)}")
        if env.startswith("rapo/"):
            return lambda: gymnasium.make(env, disable_env_checker=True, env_config=options)
        return lambda: _checked(gymnasium.make(env, disable_env_checker=True, **options), options)

    def protocol(self, settings: Settings) -> RolloutProtocol:
        """Make the protocol in which a policy writes. Raises ``ValueError`` if model or environment does not support it."""
        env = self.env_maker()()
        try:
            return make_protocol(load_tokenizer(settings.model), settings.protocol, env, vllm_call_reader)
        finally:
            env.close()

    def questions(self, split: str) -> Sequence[Question]:
        """Return all questions of a split, ``train`` or ``test``.

        Raises:
            ValueError: there are none.
        """
        cls = _env_class(self.env)
        if cls is not None and hasattr(cls, "questions"):
            found: Sequence[Question] = cls.questions(dict(self.options), split)
            if not len(found):
                raise ValueError(f"env {self.env!r} has no {split} questions: check env_config")
            return found
        return SeedQuestions(DEFAULT_NUM_SEEDS, offset=0 if split == "train" else DEFAULT_NUM_SEEDS)

    def expert_trajectories(self, named: str = "expert", key: str = "step_trace_buffer.traces") -> Iterable[ExpertTrajectory]:
        """Return the trajectories of an expert.

        Args:
            named: ``expert`` for the environment's own, or the path of a trace file.
            key: the key that has this value, for error messages.

        Raises:
            ValueError: the environment has no expert.
        """
        if named != "expert":
            return read_trace_file(named)
        cls = _env_class(self.env)
        if cls is None or not hasattr(cls, "expert_trajectories"):
            raise ValueError(
                f"{key} = 'expert', but env {self.env!r} has no expert: name a trace file (or null for a buffer that exists), "
                "or give the environment a classmethod expert_trajectories(env_config)"
            )
        found: Iterable[ExpertTrajectory] = cls.expert_trajectories(dict(self.options))
        return found


def _checked(env: gymnasium.Env, options: Mapping[str, Any]) -> gymnasium.Env:
    """Check the options of an environment whose class is only known now that it is made; return the environment."""
    check_env_keys(type(env.unwrapped), options)
    return env


def is_tool_env(env: Any) -> bool:
    """Check whether ``env`` is one of our tool environments, or a subclass of one."""
    return _is(env, ToolEnv)


def _is(env: Any, kind: type) -> bool:
    cls = _env_class(env)
    return cls is not None and issubclass(cls, kind)


def _env_class(env: Any) -> type | None:
    """Find the class behind ``env``; None if it is only known once an environment is made."""
    if isinstance(env, type):
        return env
    if isinstance(env, str) and env in gymnasium.registry:
        entry = gymnasium.spec(env).entry_point
        creator: Any = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        return creator if isinstance(creator, type) else None
    return None


_DERIVE = "derive your environment from rapo_rllib.envs.tool_env.ToolEnv, which runs tools and scores answers"
_ADVICE = {
    **{
        f.name: "use env: rapo/questions, or give your class a classmethod questions(env_config, split)"
        for f in fields(QuestionsOptions)
    },
    **{f.name: _DERIVE for f in fields(ToolEnvOptions)},
    "limits": _DERIVE + "; limits stand in an entry of its tools",
    "protocol": "set protocol beside env_config",
}


def check_env_keys(cls: type, keys: Iterable[str]) -> None:
    """Refuse keys of ours that an environment does not take.

    Args:
        cls: of the environment.
        keys: of its ``env_config``.

    Raises:
        ValueError: naming the first such key, and what to do.
    """
    if issubclass(cls, TextEnv):  # these refuse unknown keys themselves
        return
    takes = {*getattr(cls, "env_config_keys", ()), *inspect.signature(cls).parameters}
    for key in keys:
        if key in _ADVICE and key not in takes:
            raise ValueError(
                f"env_config.{key}: {cls.__name__} would ignore it, a key of rapo_rllib's own environments: "
                f"{_ADVICE[key]}; or, if your class reads it, declare it there: env_config_keys = ({key!r},)"
            )
