"""``env_config`` as typed, checked options: every environment declares its keys as a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from rapo_rllib.rewards import RewardOptions, check_scorer, with_reward_preset
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.validation import is_int, refuse_unknown_keys, require

Options = TypeVar("Options")


def read_options(cls: type[Options], values: Mapping[str, Any], where: str = "env_config.") -> Options:
    """Build ``cls`` from a user's dictionary; nested dataclasses from nested dictionaries, tuples from lists.

    Raises:
        ValueError: an unknown key, named with the nearest valid one; or what ``cls`` itself refuses.
    """
    values = with_reward_preset(values)
    defaults = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    refuse_unknown_keys(values, defaults, where)
    found: dict[str, Any] = {}
    for key, value in values.items():
        nested = defaults[key].default_factory
        if isinstance(nested, type) and is_dataclass(nested) and not isinstance(value, nested):
            if not isinstance(value, Mapping):
                raise ValueError(f"{where}{key} = {value!r}: must be a mapping of {', '.join(f.name for f in fields(nested))}")
            value = read_options(nested, value, f"{where}{key}.")
        found[key] = tuple(value) if isinstance(value, list) else value
    return cls(**found)


@dataclass(frozen=True)
class ToolEnvOptions:
    """Keys of ``env_config`` that every tool environment understands."""

    tools: tuple[Any, ...] = ("python",)  # names or import paths; or {name: ..., options: {...}}
    max_tool_calls: int = 3  # one call more ends the episode
    scorer: Any = "math"  # math, qa (token F1), qa_em, auto (by the question's source), judge, or package.module:function
    require_boxed: bool = True  # a well-formed answer holds one \boxed{...}
    reward: RewardOptions = field(default_factory=RewardOptions)  # a mapping of weights, or the name of a preset
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)  # its tags are read here

    def __post_init__(self) -> None:
        require(isinstance(self.tools, tuple), "tools", self.tools, "must be a list of tool names, for example [python]")
        require(is_int(self.max_tool_calls, 0), "max_tool_calls", self.max_tool_calls, "must be a whole number, 0 or more")
        check_scorer(self.scorer)
        require(isinstance(self.require_boxed, bool), "require_boxed", self.require_boxed, "must be true or false")
