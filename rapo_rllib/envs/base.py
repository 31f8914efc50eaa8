"""Shared parts of this package's environments: sources of questions, options, spaces, the info of a step with tool calls."""

from __future__ import annotations

import string
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, overload

import gymnasium

from rapo_rllib.envs.options import read_options
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question, ToolUse


class AnyText(gymnasium.spaces.Text):
    """The space of all strings up to a length. ``gymnasium.spaces.Text`` itself needs a list of all allowed characters.

    Samples are made of printable ASCII characters.
    """

    def __init__(self, max_length: int = 1_000_000) -> None:
        super().__init__(max_length=max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string of at most ``max_length`` characters."""
        return isinstance(x, str) and len(x) <= self.max_length


class LazyQuestions(Sequence[Question]):
    """A question source that makes question ``i`` on access. Subclasses implement ``make``.

    Args:
        length: number of questions.
    """

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Question: ...
    @overload
    def __getitem__(self, index: slice) -> list[Question]: ...
    def __getitem__(self, index: int | slice) -> Question | list[Question]:
        if isinstance(index, slice):
            return [self.make(i) for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"question {index} of {self._length}")
        return self.make(index % self._length)

    @abstractmethod
    def make(self, index: int) -> Question:
        """Make question ``index``, the same at each call; ``index`` is in ``range(len(self))``."""


class SeedQuestions(LazyQuestions):
    """``n`` questions that each hold only a seed for ``env.reset``; the environment makes the text and scores the episode.

    >>> SeedQuestions(2)[1]
    Question(id='seed-1', text='', answer='', aliases=(), seed=1, source='', benchmark='')
    """

    def __init__(self, n: int, offset: int = 0) -> None:
        super().__init__(n)
        self._offset = offset

    def make(self, index: int) -> Question:
        """Return the question of seed ``offset + index``."""
        seed = self._offset + index
        return Question(id=f"seed-{seed}", text="", seed=seed)


class TextEnv(gymnasium.Env[str, str]):
    """Base class of this package's environments: options are checked; actions and observations are texts.

    Args:
        env_config: values for the keys of ``options_class``.
        **kwargs: values for further keys, as ``gymnasium.make`` passes them.

    Raises:
        ValueError: an unknown key, or a value that is refused.
    """

    options_class: ClassVar[type]

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self.env_config = {**(env_config or {}), **kwargs}
        self.options: Any = read_options(self.options_class, self.env_config)
        self.observation_space = AnyText()
        self.action_space = AnyText()

    def asked(self, options: Mapping[str, Any] | None) -> Question:
        """Choose the question of an episode: ``options["question"]`` as given to ``reset``, else a random training question."""
        question: Question | None = (options or {}).get("question")
        if question is not None:
            return question
        cls: Any = type(self)
        source: Sequence[Question] = cls.questions(self.env_config, "train")
        return source[int(self.np_random.integers(len(source)))]


def solved(calls: Iterable[tuple[str, str]], answer: str, tag: str, settings: ProtocolSettings) -> tuple[str, ...]:
    r"""Write a solution in the text protocol: one step for each (call, output), then the step with the answer.

    Example: ``<python>12 + 5</python>\n<result>\n17\n</result>\n``, ``<answer>\boxed{17}</answer>``.
    """
    steps = [f"<{tag}>{call}</{tag}>{render_observation(output, settings)}" for call, output in calls]
    return (*steps, f"<{settings.answer_tag}>\\boxed{{{answer}}}</{settings.answer_tag}>")


def info_of(uses: Sequence[ToolUse]) -> dict[str, Any]:
    """Build the info of a step with tool calls: tool names, first error, total seconds; of several calls, also each one."""
    info: dict[str, Any] = {
        "tool": ", ".join(dict.fromkeys(use.tool for use in uses)),
        "tool_error": next((use.error for use in uses if use.error), None),
        "tool_seconds": sum(use.seconds for use in uses),
    }
    return info | ({"tool_calls": [(use.tool, use.error, use.seconds) for use in uses]} if len(uses) > 1 else {})
