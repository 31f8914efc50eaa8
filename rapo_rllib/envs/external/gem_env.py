"""``rapo/gem``: any environment of the package gem-llm (e.g. ``game:Sokoban-v0-easy``); each question is a seed.

seed -> gem's reset -> rules and board;   action -> gem's step -> observation, reward of the step
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.external.base import ExternalEnv, ExternalOptions, Played, SeededOptions
from rapo_rllib.envs.options import check_known, installed, read_options
from rapo_rllib.settings.knobs import knob
from rapo_rllib.types import Question

_draws = threading.RLock()  # gem's environments use the process's global random generators


@dataclass(frozen=True)
class GemOptions(SeededOptions):
    """The ``env_config`` keys of ``rapo/gem``."""

    id: str = knob("", "id of a gem environment, for example `game:GuessTheNumber-v0-easy`")
    kwargs: dict = knob(dict, "arguments of `gem.make`, for example {max_turns: 10}")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("env_config.id", self.id, _registry(), "gem")


class Gem(ExternalEnv):
    """An environment of gem."""

    options_class: ClassVar[type[ExternalOptions]] = GemOptions
    template = "\\boxed{{action}}"

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(env_config, **kwargs)
        name, given = self.options.id, self.options.kwargs
        try:
            with _draws:
                self._env = _gem().make(name, **given)
        except (ImportError, TypeError, ValueError, OSError) as error:
            raise ValueError(f"env_config.id = {name!r}: gem cannot make it with {given!r}: {error}") from error
        self._state: Any = None  # of the global generators, as this episode has left them

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> SeedQuestions:
        """Return the seeds of ``split``. If an environment has few episodes, different seeds may give the same one."""
        return read_options(GemOptions, env_config).questions(split)

    def begin(self, question: Question) -> str:
        """Start an episode; return the rules and the first observation."""
        self._state = None
        with self._drawing():
            observation, info = self._env.reset(seed=question.seed)
            return _shown(observation, info)

    def play(self, action: str) -> Played:
        """Play one step with the random numbers of the question's seed; they are global, so a process plays one at a time."""
        with self._drawing():
            observation, reward, terminated, truncated, info = self._env.step(action)
        ended = bool(terminated or truncated)
        text = str(observation) if ended else _shown(observation, info)
        return Played(text, float(reward), bool(terminated), bool(truncated))

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Set the global generators to this episode's state, and afterwards back to their state before."""
        with _draws:
            before = (random.getstate(), np.random.get_state())
            try:
                if self._state is not None:
                    random.setstate(self._state[0])
                    np.random.set_state(self._state[1])
                yield
                self._state = (random.getstate(), np.random.get_state())
            finally:
                random.setstate(before[0])
                np.random.set_state(before[1])


def _shown(observation: Any, info: Mapping[str, Any]) -> str:
    """Build the text that gem's own wrappers show: prefix, observation, and suffix (which has the board)."""
    return "\n".join(filter(None, [info.get("prefix", ""), str(observation).rstrip("\n"), info.get("suffix", "")]))


@lru_cache(maxsize=1)
def _gem() -> ModuleType:
    """Import the package, and restore the root logger: gem would send the log of the whole process to the terminal."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        return installed("gem", "rapo/gem", "gem-llm", "gem")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _registry() -> Mapping[str, Any]:
    _gem()
    from gem.envs.registration import ENV_REGISTRY

    return dict(ENV_REGISTRY)
