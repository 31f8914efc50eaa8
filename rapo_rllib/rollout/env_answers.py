"""Checked reading of what an environment's ``reset``, ``step`` and ``truncate`` return; invalid values are ``EnvError``s.

returned value --> observation as text, finite reward, true or false, info with the values that a rollout reads
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from rapo_rllib.errors import EnvError
from rapo_rllib.protocol.turns import Observation

_MOST = 1e18  # of a reward: its square is still a float32
_NUMBER = f"a finite number, at most {_MOST:g}"


@dataclass(frozen=True)
class EnvResult:
    """The result of ``env.step``, or of ``env.truncate``."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def first_observation(returned: Any) -> str:
    """Read the first observation of an episode from what ``reset`` returned."""
    observation, info = _parts(returned, "observation, info")
    _info(info)
    return _text(observation)


def step_result(returned: Any) -> EnvResult:
    """Read an ``EnvResult`` from what ``step`` returned."""
    observation, reward, terminated, truncated, info = _parts(returned, "observation, reward, terminated, truncated, info")
    for key, value in (("terminated", terminated), ("truncated", truncated)):
        _must(_is_flag, value, key, "true or false")
    return EnvResult(_text(observation), _reward(reward), bool(terminated), bool(truncated), _info(info))


def judgement(returned: Any) -> EnvResult:
    """Read an ``EnvResult`` from what ``truncate`` returned for an episode that a budget has ended."""
    reward, info = _parts(returned, "reward, info")
    return EnvResult("", _reward(reward), False, True, {"correct": False, "format_ok": False, **_info(info)})


def _must(suits: Callable[[Any], bool], value: Any, what: str, rule: str) -> Any:
    if not suits(value):
        raise EnvError(f"{what} = {value!r:.200} ({type(value).__name__}): must be {rule}")
    return value


def _parts(returned: Any, names: str) -> Any:
    count = names.count(",") + 1
    if not isinstance(returned, tuple) or len(returned) != count:
        got = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise EnvError(f"returned {got}: must return the tuple ({names})")
    return returned


def _text(observation: Any) -> str:
    """Check that an observation is a text, and replace lone surrogates, which no tokenizer takes, by question marks."""
    if isinstance(observation, Observation):
        return Observation.of([_text(part) for part in observation.parts])
    return str(_must(_is_text, observation, "observation", "a text")).encode("utf-8", "replace").decode()


def _reward(value: Any) -> float:
    return float(_must(_is_number, value, "reward", _NUMBER))


def _info(info: Any) -> dict[str, Any]:
    found = dict(_must(lambda value: isinstance(value, Mapping), info, "info", "a mapping"))
    for key, (suits, rule) in _INFO.items():
        if key in found:
            _must(suits, found[key], f"info[{key!r}]", rule)
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_) or (isinstance(value, Real) and value in (0, 1))


def _is_number(value: Any) -> bool:
    number = isinstance(value, Real | np.bool_)
    return number and abs(value if isinstance(value, int) else float(value)) <= _MOST


def _is_use(value: Any) -> bool:
    """Return whether ``value`` has the fields of a ``ToolUse``: name, and perhaps error and seconds."""
    whole = isinstance(value, tuple | list) and 1 <= len(value) <= 3 and _is_text(value[0])
    return whole and all(map(_is_error, value[1:2])) and all(map(_is_number, value[2:3]))


def _is_error(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_list(suits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple | np.ndarray) and all(map(suits, value))


# the keys of an info that are checked, each with its check and its rule in words; other keys may hold anything
_INFO: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tool": (_is_error, "a text"),
    "tool_error": (_is_error, "a text or None"),
    "tool_seconds": (_is_number, _NUMBER),
    "tool_calls": (_is_list(_is_use), "a list of (tool, error, seconds)"),
    "step_right": (lambda value: value is None or _is_flag(value), "true, false or None"),
    "correct": (_is_flag, "true or false"),
    "format_ok": (_is_flag, "true or false"),
    "end": (_is_error, "a text"),
    "step_rewards": (_is_list(_is_number), f"a list of numbers, each {_NUMBER}"),
    "reward_terms": (
        lambda value: isinstance(value, Mapping) and all(map(_is_text, value)) and all(map(_is_number, value.values())),
        f"a mapping of names to numbers, each {_NUMBER}",
    ),
}
