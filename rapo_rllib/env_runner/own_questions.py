"""Questions of an env runner that RLlib asks for episodes without giving it any questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.types import Question


@dataclass
class OwnQuestions:
    """Every ``num_runners``-th question from the ``index``-th on, so that env runners ask different questions.

    Training questions come in the job's order, held-out questions in the order of their data set. So the first N held-out
    questions that all env runners take together are the N questions of RAPO's own evaluation.
    """

    source: Any  # a QuestionSource
    seed: int
    index: int = 0
    num_runners: int = 1
    cursor: QuestionCursor | None = None  # the job's, if it is in this process; None: a new one is made
    _asked: int = field(default=0, init=False)  # held-out questions since ``restart``

    def take(self, count: int) -> list[Question]:
        """Return the next training questions."""
        if self.cursor is None:
            self.cursor = QuestionCursor(self.source.questions("train"), self.seed)
        return self.cursor.take(count * self.num_runners)[self.index :: self.num_runners]

    def restart(self) -> None:
        """Begin again with the first held-out question."""
        self._asked = 0

    def take_held_out(self, count: int) -> list[Question]:
        """Return the next held-out questions; after the last question comes the first."""
        questions = self._held_out
        places = range(self._asked, self._asked + count)
        self._asked += count
        return [questions[(self.index + place * self.num_runners) % len(questions)] for place in places]

    @cached_property
    def _held_out(self) -> Sequence[Question]:
        found: Sequence[Question] = self.source.questions("test")
        return found


def missing_episodes(sampled: SampleResult, episodes: int, timesteps: int | None) -> int:
    """Compute how many episodes are missing to reach ``episodes``, or, as an estimate, ``timesteps`` generated steps."""
    whole = [t for t in sampled.trajectories if not t.failed]
    if timesteps is None:
        return max(episodes - len(whole), 0)
    steps = sum(len(t.steps) for t in whole)
    return math.ceil(max(timesteps - steps, 0) / max(steps / len(whole) if whole else 2.0, 1.0))
