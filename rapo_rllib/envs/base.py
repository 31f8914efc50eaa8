"""Protocols of what an environment may bring along: its questions, and an expert's trajectories for the Step-Trace Buffer.

Both are optional class methods of a gymnasium environment with text observations and actions. An environment without
``questions`` is asked by seed (``SeedQuestions``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, overload, runtime_checkable

from rapo_rllib.types import ExpertTrajectory, Question

QuestionSource = Sequence[Question]

SPLITS = ("train", "test")


def check_split(split: str) -> None:
    """Raise ``ValueError`` unless ``split`` is one of ``SPLITS``."""
    if split not in SPLITS:
        raise ValueError(f"split = {split!r}: must be one of {', '.join(SPLITS)}")


@runtime_checkable
class AsksQuestions(Protocol):
    """An environment class that provides questions."""

    @classmethod
    def questions(cls, env_config: dict[str, Any], split: str) -> QuestionSource:
        """All questions of ``split``, "train" or "test", with random access; always the same for the same arguments."""


@runtime_checkable
class HasExpert(Protocol):
    """An environment class that can build a Step-Trace Buffer by itself."""

    @classmethod
    def expert_trajectories(cls, env_config: dict[str, Any]) -> Iterable[ExpertTrajectory]:
        """Trajectories for training questions, in the text protocol."""


class LazyQuestions(Sequence[Question]):
    """A question source that makes question ``i`` when it is asked for. Subclasses write ``make``.

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
        """Question ``index``, in ``range(len(self))``."""


class SeedQuestions(LazyQuestions):
    """``n`` questions that are nothing but a seed for ``env.reset``; the environment makes the text and scores by itself.

    >>> SeedQuestions(2)[1]
    Question(id='seed-1', text='', answer='', aliases=(), seed=1, source='', benchmark='')
    """

    def __init__(self, n: int, offset: int = 0) -> None:
        super().__init__(n)
        self._offset = offset

    def make(self, index: int) -> Question:
        """The question of seed ``offset + index``."""
        seed = self._offset + index
        return Question(id=f"seed-{seed}", text="", seed=seed)
