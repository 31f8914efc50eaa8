"""``rapo/gem``: any environment of the package gem-llm (``game:Sokoban-v0-easy``, say), a question a seed.

seed -> gem's reset -> rules and board;   action -> gem's step -> observation, reward of the step
"""

from __future__ import annotations

import difflib
import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.external.base import ExternalEnv, ExternalOptions, Played, SeededOptions
from rapo_rllib.envs.options import read_options
from rapo_rllib.settings.knobs import knob
from rapo_rllib.types import Question
from rapo_rllib.validation import require

_draws = threading.RLock()  # gem's environments draw from the generators of the whole process


@dataclass(frozen=True)
class GemOptions(SeededOptions):
    """Keys of ``env_config`` of ``rapo/gem``."""

    id: str = knob("", "of an environment of gem, for example `game:GuessTheNumber-v0-easy`")
    kwargs: dict = knob(dict, "handed to `gem.make`, for example {max_turns: 10}")
    action_template: str = knob("\\boxed{{action}}", "what the environment gets of an action that stood in the tag")

    def __post_init__(self) -> None:
        super().__post_init__()
        known = sorted(_registry())
        near = difflib.get_close_matches(self.id, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {len(known)}, {known[0]} to {known[-1]}"
        require(self.id in known, "id", self.id, f"gem has no environment of this name; {hint}")


class Gem(ExternalEnv):
    """An environment of gem."""

    options_class: ClassVar[type[ExternalOptions]] = GemOptions

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(env_config, **kwargs)
        assert isinstance(self.options, GemOptions)
        with _draws:
            self._env = self._made(self.options)
        self._state: Any = None  # of the generators, as this episode has left them

    @staticmethod
    def _made(options: GemOptions) -> Any:
        try:
            return _gem().make(options.id, **options.kwargs)
        except (ImportError, TypeError, ValueError, OSError) as error:
            raise ValueError(f"env_config.id = {options.id!r}: gem cannot make it with {options.kwargs!r}: {error}") from error

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> SeedQuestions:
        """The seeds of ``split``. Episodes of different seeds may be alike where an environment has few."""
        return read_options(GemOptions, env_config).questions(split)

    def begin(self, question: Question) -> str:
        """The rules, and what the environment shows first."""
        with self._drawing(None):
            observation, info = self._env.reset(seed=question.seed)
            return _shown(observation, info)

    def play(self, action: str) -> Played:
        """One step; it draws from the question's seed, so a process takes one at a time."""
        with self._drawing(self._state):
            observation, reward, terminated, truncated, info = self._env.step(action)
        ended = bool(terminated or truncated)
        text = str(observation) if ended else _shown(observation, info)
        return Played(text, float(reward), bool(terminated), bool(truncated))

    @contextmanager
    def _drawing(self, state: Any) -> Iterator[None]:
        """The process's generators as this episode left them (None: as they are), and afterwards as others left them."""
        with _draws:
            before = (random.getstate(), np.random.get_state())
            try:
                if state is not None:
                    random.setstate(state[0])
                    np.random.set_state(state[1])
                yield
                self._state = (random.getstate(), np.random.get_state())
            finally:
                random.setstate(before[0])
                np.random.set_state(before[1])


def _shown(observation: Any, info: Mapping[str, Any]) -> str:
    """The text that gem's own wrappers show: the observation between its prefix and its suffix, which has the board."""
    return "\n".join(filter(None, [info.get("prefix", ""), str(observation).rstrip("\n"), info.get("suffix", "")]))


@lru_cache(maxsize=1)
def _gem() -> ModuleType:
    """The package. Importing it would send the log of the whole process to the terminal.

    Raises:
        ValueError: it is not installed, or a package that it needs is not.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        import gem
    except ImportError as error:
        raise ValueError(f"env = 'rapo/gem' needs the package gem-llm: pip install 'rapo_rllib[gem]' ({error})") from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    made: Callable[..., Any] | None = getattr(gem, "make", None)
    if made is None:
        raise ValueError(f"env = 'rapo/gem': {gem.__name__!r} in {gem.__path__} is another package than gem-llm; take it out")
    return gem


def _registry() -> Mapping[str, Any]:
    _gem()
    from gem.envs.registration import ENV_REGISTRY

    registry: Mapping[str, Any] = ENV_REGISTRY
    return registry
