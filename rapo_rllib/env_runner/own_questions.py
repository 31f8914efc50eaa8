"""The questions of an env runner that is asked for episodes, as RLlib asks, and not given any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.settings import Settings
from rapo_rllib.types import Question


@dataclass
class OwnQuestions:
    """Every ``num_runners``-th question from the ``index``-th on, so that runners beside each other ask different ones.

    Training questions come in the order of the job, held-out ones in that of their data set, so that the first N that all
    runners take together are the N that RAPO's own evaluation asks.
    """

    source: Any  # a QuestionSource
    seed: int
    index: int = 0
    num_runners: int = 1
    cursor: QuestionCursor | None = None  # the job's, where there is one in this process; None: one of its own
    _asked: int = field(default=0, init=False)  # held-out ones since ``restart``

    def take(self, count: int) -> list[Question]:
        """The next training questions."""
        if self.cursor is None:
            self.cursor = QuestionCursor(self.source.questions("train"), self.seed)
        return self.cursor.take(count * self.num_runners)[self.index :: self.num_runners]

    def restart(self) -> None:
        """Begin again with the first held-out question."""
        self._asked = 0

    def take_held_out(self, count: int) -> list[Question]:
        """The next held-out questions; behind the last comes the first."""
        questions = self._held_out
        places = range(self._asked, self._asked + count)
        self._asked += count
        return [questions[(self.index + place * self.num_runners) % len(questions)] for place in places]

    @cached_property
    def _held_out(self) -> Sequence[Question]:
        found: Sequence[Question] = self.source.questions("test")
        return found


@dataclass(frozen=True)
class Wanted:
    """The amount to sample: so many episodes, or so many generated steps."""

    episodes: int = 0
    timesteps: int = 0

    @classmethod
    def of(
        cls, settings: Settings, num_runners: int, in_evaluation: bool, num_timesteps: int | None, num_episodes: int | None
    ) -> Wanted:
        """The amount that RLlib's arguments ask for; neither: a runner's share of a training step, or of an evaluation.

        Raises:
            ValueError: both are given.
        """
        if num_timesteps is not None and num_episodes is not None:
            raise ValueError(f"num_timesteps = {num_timesteps} with num_episodes = {num_episodes}: give one of them")
        if num_timesteps is not None or num_episodes is not None:
            return cls(num_episodes or 0, num_timesteps or 0)
        step = settings.update.questions_per_step * settings.rollout.group_size
        return cls(math.ceil((settings.rllib.evaluation_duration if in_evaluation else step) / num_runners))

    def missing(self, sampled: SampleResult) -> int:
        """About how many episodes are missing: steps are guessed by those there are; 0 when it is enough."""
        whole = [t for t in sampled.trajectories if not t.failed]
        if not self.timesteps:
            return max(self.episodes - len(whole), 0)
        steps = sum(len(t.steps) for t in whole)
        return math.ceil(max(self.timesteps - steps, 0) / max(steps / len(whole) if whole else 2.0, 1.0))
