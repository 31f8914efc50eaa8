"""Groups of single steps: the policy writes the next step after the first steps of an expert (algorithm.md section 14).

    trajectories of another agent --rows--> (question, steps before, the step) --some places of the order--> env runners

The rows need not be of the questions that are asked: what others did elsewhere teaches a step just as well. Each has a signal
of its own, at the price of one step.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rapo_rllib.settings.schedule import value_at
from rapo_rllib.types import ExpertTrajectory, Question, TrajectoryGroup

_Row = tuple[str, str, tuple[str, ...]]  # id and text of the question, steps before
_DRAWS = 50  # where every row was refused, one of them is asked again


class ExpertRows:
    """The steps of another agent, each with those before it.

    Args:
        experts: trajectories; those with a positive reward.
        share: of the groups that are single steps: a number, or a schedule over env steps.
        seed: of the draws.
    """

    def __init__(self, experts: Iterable[ExpertTrajectory], share: Any, seed: int = 0) -> None:
        self._share, self._seed = share, seed
        self._experts = [expert for expert in experts if expert.reward > 0 and expert.steps]
        self._rows = [(number, index) for number, expert in enumerate(self._experts) for index in range(len(expert.steps))]
        self._refused: set[_Row] = set()  # those whose steps environment, budget or chat template did not take
        self.share = value_at(share, 0)

    def __len__(self) -> int:
        return len(self._rows)

    def reached(self, env_steps: int) -> None:
        """Move the schedule to the generated steps that the training has sampled so far."""
        self.share = value_at(self._share, env_steps)

    def row(self, place: int) -> Question:
        """Return the row for a place in the training's order, of those that were not refused so far."""
        rng = random.Random(f"{self._seed}/row/{place}")
        for _ in range(_DRAWS):
            number, index = rng.choice(self._rows)
            expert = self._experts[number]
            row = replace(expert.question, start=tuple(expert.steps[:index]), expected=expert.steps[index])
            if _row(row) not in self._refused:
                break
        return row

    def learn(self, groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
        """Return the metrics of the finished groups: ``single_steps/...``."""
        rows = [group for group in groups if group.question.expected]
        for group in rows:
            if any(trajectory.start_refused for trajectory in group.trajectories):
                self._refused.add(_row(group.question))
        right = [t.correct for group in rows for t in group.counted]
        equal = sum(len({t.correct for t in group.members}) < 2 for group in rows)
        values = {"groups": len(rows), "accuracy": sum(right) / max(len(right), 1), "groups_without_signal": equal}
        values["refused"] = len(self._refused)
        return {f"single_steps/{name}": float(value) for name, value in values.items()}

    def get_state(self) -> Any:
        """For checkpoints."""
        return sorted(self._refused)

    def set_state(self, state: Any) -> None:
        """From a checkpoint; None: of a run without single steps."""
        self._refused = set(state or ())


def _row(question: Question) -> _Row:
    return question.id, question.text, question.start
