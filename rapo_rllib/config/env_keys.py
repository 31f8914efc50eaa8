"""Refusal of keys of ``env_config`` that only our environments read, if a user's own environment would ignore them.

An environment of a user's own that reads such a key says so: ``env_config_keys = ("tools",)``, or an argument of that name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields

from rapo_rllib.envs.base import TextEnv
from rapo_rllib.envs.options import ToolEnvOptions
from rapo_rllib.envs.questions import QuestionsOptions

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
    if issubclass(cls, TextEnv):  # they refuse what they do not know
        return
    takes = {*getattr(cls, "env_config_keys", ()), *inspect.signature(cls).parameters}
    for key in keys:
        if key in _ADVICE and key not in takes:
            raise ValueError(
                f"env_config.{key}: {cls.__name__} would ignore it, a key of rapo_rllib's own environments: "
                f"{_ADVICE[key]}; or, if your class reads it, declare it there: env_config_keys = ({key!r},)"
            )
