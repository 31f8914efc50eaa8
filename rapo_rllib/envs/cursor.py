"""Order of the questions: a seeded shuffle per epoch, which resumes exactly where it stopped."""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterable, Sequence
from typing import Any

from rapo_rllib.types import Question


class QuestionCursor:
    """A walk through a question sequence, in a new order every epoch; no question comes twice before all came once.

    Args:
        questions: a sequence of fixed length, read at random places.
        seed: of the shuffles.
    """

    def __init__(self, questions: Sequence[Question], seed: int = 0) -> None:
        self._questions = questions
        self._seed = seed
        self.position = 0  # questions taken so far, over all epochs
        self._again: list[int] = []  # places that were taken and put back, sorted
        self._order: tuple[int, list[int]] | None = None

    def take(self, count: int) -> list[Question]:
        """Take the next ``count`` questions."""
        return [question for _, question in self.take_places(count)]

    def take_places(self, count: int) -> list[tuple[int, Question]]:
        """Take the next ``count`` questions, each with its place over all epochs; questions that were put back come first."""
        return [(place, self._at(place)) for place in (self._next() for _ in range(count))]

    def put_back(self, places: Iterable[int]) -> None:
        """Put back the questions at these places, to be taken again."""
        for place in places:
            bisect.insort(self._again, place)

    def _next(self) -> int:
        if self._again:
            return self._again.pop(0)
        self.position += 1
        return self.position - 1

    def _at(self, place: int) -> Question:
        epoch, index = divmod(place, len(self._questions))
        if self._order is None or self._order[0] != epoch:
            order = list(range(len(self._questions)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._questions[self._order[1][index]]

    def get_state(self, untrained: Iterable[int] = ()) -> dict[str, Any]:
        """Return the state from which the cursor continues with the same next questions.

        Args:
            untrained: places of questions that were taken but not trained on; from this state they are taken again.
        """
        again = sorted({*self._again, *untrained})
        return {"position": self.position, "seed": self._seed, "num_questions": len(self._questions), "again": again}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. Raises ``ValueError`` if the data set has another size now."""
        if state["num_questions"] != len(self._questions):
            raise ValueError(
                f"the checkpoint was made with {state['num_questions']} training questions, now there are "
                f"{len(self._questions)}: restore with the same env_config"
            )
        self.position, self._seed, self._order = state["position"], state["seed"], None
        self._again = list(state["again"])
