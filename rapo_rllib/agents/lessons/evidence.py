"""Which attempts a lesson is drawn from, and where it stands in the buffer: pure functions over what was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rapo_rllib.agents.attempts import Attempt
from rapo_rllib.buffer.keys import trace_id
from rapo_rllib.types import LESSON, StepTrace

if TYPE_CHECKING:
    import numpy as np

BLOCK = 1024  # questions that are compared with all others at a time

TRIED = {"id": str, "question": str, "attempts": [{"steps": [str], "reward": float, "right": bool}]}  # a line of a file


@dataclass(frozen=True)
class Tried:
    """One attempt that may be shown."""

    question: str
    steps: tuple[str, ...]
    reward: float
    right: bool

    def id(self, source: str) -> str:
        """Derived from its content, as that of a trajectory that is stored whole."""
        return trace_id(self.question, "", "".join(self.steps), source)


@dataclass(frozen=True)
class TriedQuestion:
    """A question with the attempts at it that lessons may be drawn from, right and wrong ones in turn."""

    id: str
    text: str
    attempts: tuple[Tried, ...]

    def row(self) -> dict[str, Any]:
        """As a line of a file."""
        shown = [{name: value for name, value in asdict(one).items() if name != "question"} for one in self.attempts]
        return {"id": self.id, "question": self.text, "attempts": shown}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> TriedQuestion:
        """From a line of a file, of the shape ``TRIED``."""
        text = row["question"]
        attempts = [Tried(text, tuple(one["steps"]), float(one["reward"]), one["right"]) for one in row["attempts"]]
        return cls(row["id"], text, tuple(attempts))


def told_apart(question: str, attempts: Sequence[Attempt], most: int) -> tuple[Tried, ...]:
    """Up to ``most`` different attempts, a right and a wrong one in turn, then what is left of the more frequent kind.

    Those that ended with an error, or have an empty step, are left out: they say nothing about the question.

    Example: of right, right, right, wrong (in this order) with ``most = 3``: right, wrong, right.
    """
    found: dict[tuple[str, ...], Tried] = {}
    for one in attempts:
        if one.end != "error" and one.steps and all(one.steps):
            found.setdefault(one.steps, Tried(question, one.steps, one.reward, one.correct))
    kinds = [[one for one in found.values() if one.right == right] for right in (True, False)]
    in_turn = [one for pair in zip_longest(*kinds) for one in pair if one is not None]
    return tuple(in_turn[:most])


def shown_for(own: TriedQuestion, near: Sequence[TriedQuestion], count: int, number: int) -> list[Tried]:
    """The attempts that lesson ``number`` of a question is drawn from: of it and of those near it in turn, ``count`` at most.

    Of a later lesson the attempts begin where those of the one before ended, so that it sees others where there are any.
    """
    questions = [own, *near]
    each = -(-count // len(questions))
    turned = [_turned(question.attempts, number * each) for question in questions]
    in_turn = [one for rank in zip_longest(*turned) for one in rank if one is not None]
    return in_turn[:count]


def _turned(attempts: Sequence[Tried], by: int) -> list[Tried]:
    start = by % max(len(attempts), 1)
    return [*attempts[start:], *attempts[:start]]


def lesson_rows(text: str, own: TriedQuestion, shown: Sequence[Tried], source: str, level: str) -> list[StepTrace]:
    """A lesson as rows of the buffer: one at every place of the attempts at its own question that it was drawn from.

    So it is found where the policy has written what they wrote, the wrong ones too. At level ``trajectory`` one row, at the
    question. Its reward is the best of those attempts' rewards.

    Example: of an attempt with the steps ``a``, ``b``: at the histories ``""`` and ``a``.
    """
    ids = tuple(one.id(source) for one in shown)
    reward = max(one.reward for one in shown)
    lengths = [(one.steps, length) for one in shown if one.question == own.text for length in range(len(one.steps))]
    places = {"".join(steps[:length]): length for steps, length in lengths if level == "step"} or {"": 0}
    return [
        StepTrace(
            trace_id(own.text, history, text, source),
            own.text,
            history,
            text,
            reward,
            own.id,
            length,
            source,
            kind=LESSON,
            lesson_of=ids,
        )
        for history, length in places.items()
    ]


def nearest_others(vectors: np.ndarray, count: int) -> list[list[int]]:
    """For each of ``vectors [N, D]``, normalised, the numbers of the ``count`` nearest others, nearest first."""
    import numpy as np

    found: list[list[int]] = []
    count = min(count, len(vectors) - 1)
    for start in range(0, len(vectors), BLOCK):
        similar = vectors[start : start + BLOCK] @ vectors.T
        similar[np.arange(len(similar)), np.arange(start, start + len(similar))] = -np.inf  # not to itself
        found += np.argsort(-similar, axis=1, kind="stable")[:, :count].tolist()
    return found
