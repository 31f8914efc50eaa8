"""``env_config`` as typed, checked options: every environment declares its keys as a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from rapo_rllib.envs.scoring import SCORERS
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.unknown_keys import refuse_unknown_keys

Options = TypeVar("Options")


def require(condition: bool, key: str, value: object, rule: str) -> None:
    """Raise ``ValueError`` naming the key of ``env_config``, its value and what it must be, unless ``condition``."""
    if not condition:
        raise ValueError(f"env_config.{key} = {value!r}: {rule}")


def is_int(value: object, low: int) -> bool:
    """Whether ``value`` is a whole number of at least ``low``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def read_options(cls: type[Options], values: Mapping[str, Any], where: str = "env_config.") -> Options:
    """Build ``cls`` from a user's dictionary; nested dataclasses from nested dictionaries, tuples from lists.

    Raises:
        ValueError: an unknown key, named with the nearest valid one; or what ``cls`` itself refuses.
    """
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
class RewardOptions:
    """Terms of the outcome reward; they are added up. ALGORITHM sections 9, 10."""

    correct: float = 1.0  # times the scorer's score in [0, 1]
    format: float = 0.0  # added when the final step is well-formed
    bad_format: float = 0.0  # added when it is not, or when there is no answer (released code: -1, with strict_format)
    all_tools: float = 0.0  # added when the answer is correct and every tool was called (released code: 0.1)
    strict_format: bool = False  # an answer in bad format earns nothing but bad_format

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "strict_format":
                require(isinstance(value, bool), "reward.strict_format", value, "must be true or false")
            else:
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                require(number, f"reward.{f.name}", value, "must be a number")


@dataclass(frozen=True)
class ToolEnvOptions:
    """Keys of ``env_config`` that every tool environment understands."""

    tools: tuple[Any, ...] = ("python",)  # names or import paths; or {name: ..., options: {...}}
    max_tool_calls: int = 3  # one call more ends the episode
    scorer: str = "math"  # math, qa (token F1), qa_em, or auto (qa for questions whose source ends in /qa, else math)
    require_boxed: bool = True  # a well-formed answer holds one \boxed{...}
    reward: RewardOptions = field(default_factory=RewardOptions)
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)  # its tags are read here

    def __post_init__(self) -> None:
        require(isinstance(self.tools, tuple), "tools", self.tools, "must be a list of tool names, for example [python]")
        require(is_int(self.max_tool_calls, 0), "max_tool_calls", self.max_tool_calls, "must be a whole number, 0 or more")
        known = (*SCORERS, "auto")
        require(self.scorer in known, "scorer", self.scorer, f"must be one of {', '.join(known)}")
        require(isinstance(self.require_boxed, bool), "require_boxed", self.require_boxed, "must be true or false")
