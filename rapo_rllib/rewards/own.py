"""A user's own reward function, by its import path.

    def my_reward(answer: str | None, question: Question, episode: Episode) -> float | dict[str, float] | Score

``env_config.scorer: package.module:my_reward``, or ``{name: package.module:my_reward, options: {...}}`` with further keyword
arguments. A class is made once with the options, and its object called. What it raises ends the trajectory with an error.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from rapo_rllib.rewards.score import Episode, Score
from rapo_rllib.rewards.terms import TERMS
from rapo_rllib.types import Question

_TAKEN = frozenset(TERMS) - {"correct"}


class OwnReward:
    """Calls a user's function and checks what it returns.

    Args:
        path: ``package.module:name`` of a function or class.
        options: keyword arguments of the function, or of the class.

    Raises:
        ValueError: the path leads to nothing that can be called with answer, question and episode.
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path = path
        target = _imported(path)
        if inspect.isclass(target):
            self._check(target, (), options)
            target, options = target(**options), {}
        self._function, self._options = target, dict(options)
        self._check(self._function, ("answer", "question", "episode"), self._options)

    def __call__(self, answer: str | None, question: Question, episode: Episode) -> Score:
        """Score an episode by the function.

        Raises:
            ValueError: it returned something else than finite numbers.
        """
        return as_score(self._function(answer, question, episode, **self._options), self._path)

    def _check(self, function: Any, positional: tuple[str, ...], options: Mapping[str, Any]) -> None:
        if not callable(function):
            raise ValueError(f"env_config.scorer = {self._path!r}: a {type(function).__name__} cannot be called")
        try:
            inspect.signature(function).bind(*positional, **options)
        except TypeError as error:
            wanted = ", ".join([*positional, *(f"{key}=..." for key in options)])
            raise ValueError(f"env_config.scorer = {self._path!r} cannot be called with ({wanted}): {error}") from error

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnReward:
        return self  # a trajectory that branches copies its environment; scorers are shared


def as_score(found: Any, path: str) -> Score:
    """A number, named terms or a ``Score`` as a ``Score``; a number or a term ``correct`` of 1 or more counts as correct.

    Raises:
        ValueError: naming what is no finite number, or a term that the environment adds by itself.
    """
    if isinstance(found, Score):
        named, terms = {"value": found.value, **found.terms}, found.terms
    elif isinstance(found, Mapping):
        named = terms = dict(found)
    else:
        named, terms = {"value": found}, {}
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"{path} returned {name!r}: {value!r}, which is no finite number: return a number, or named terms")
    if taken := _TAKEN & terms.keys():
        raise ValueError(f"{path} returned a term {min(taken)!r}, which env_config.reward adds: give it another name")
    steps = tuple(found.steps) if isinstance(found, Score) else ()
    if not all(isinstance(value, Real) and math.isfinite(value) for value in steps):
        raise ValueError(f"{path} returned steps = {steps!r}: must be a finite number for each step")
    numbers = {name: float(value) for name, value in terms.items()}
    total = math.fsum(numbers.values()) if numbers or isinstance(found, Mapping) else float(named["value"])
    correct = found.correct if isinstance(found, Score) else numbers.get("correct", total) >= 1
    return Score(total, correct, numbers, found.failure if isinstance(found, Score) else "", steps)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a user's module raises while it is loaded
        raise ValueError(f"env_config.scorer = {path!r}: cannot import it: {error!r}") from error
