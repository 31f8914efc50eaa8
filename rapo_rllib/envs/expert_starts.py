"""Groups that begin behind the first steps of an expert's trajectory of their question (algorithm.md section 13).

    cursor --questions--> GuidedQuestions --some with ``start``--> env runners --groups--> ExpertStarts.learn

A reward that comes behind T right steps in a row is found by chance with p^T, behind all but the last two with p^2. How many
are left to the policy is drawn by where the outcomes of groups differ now: of steps that it always gets right, or never, it
learns nothing. All members of a group begin alike, so they share a baseline, and what they write is on-policy: the steps that
are given are history, as a tool's results are, and are not trained.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.envs.unaided_success import UnaidedSuccess
from rapo_rllib.settings.schedule import value_at
from rapo_rllib.types import ExpertTrajectory, Question, TrajectoryGroup

_Row = tuple[str, str, tuple[str, ...]]  # id and text of the question, steps before
_DRAWS = 50  # where every row was refused, one of them is asked again
WINDOW = 64  # newest trajectories that a success rate is taken of
_GOLDEN = (math.sqrt(5) - 1) / 2
FEWEST_LEFT = 2  # steps left to the policy: behind all but the last one it would learn that the next step is to answer


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
        """Return what checkpoints keep."""
        return sorted(self._refused)

    def set_state(self, state: Any) -> None:
        """Go on from a checkpoint; None: of a run without single steps."""
        self._refused = set(state or ())


def _row(question: Question) -> _Row:
    return question.id, question.text, question.start


def signal_chance(success: float, size: int) -> float:
    """Return the probability that the outcomes of a group differ and so have a signal.

        1 - p^G - (1 - p)^G

    Args:
        success: p, chance of a trajectory to be right.
        size: G.

    Returns:
        A chance. Example: p = 1/2, G = 2: 1/2.
    """
    return 1.0 - success**size - (1.0 - success) ** size


def success_rate(right: int, count: int) -> float:
    """Return the estimated success rate of trajectories, ½ without data (Laplace's rule of succession).

        (r + 1) / (n + 2)

    Args:
        right: r, of ``count``.
        count: n.
    """
    return (right + 1) / (count + 2)


def spread(place: int) -> float:
    """Return a number in [0, 1) for a place of the training's order; those of any places in a row are spread evenly.

        frac((i + 1) φ),  φ = (√5 - 1) / 2

    Whoever asks the question there, and whenever, gets the same.

    Args:
        place: i, from 0.
    """
    return (place + 1) * _GOLDEN % 1.0


class ExpertStarts:
    """The steps that a question begins behind, and how often the policy is right with so many left to it.

    Args:
        experts: trajectories of another agent; of each question the first with a positive reward is taken.
        share: of the questions that may begin behind such steps.
        group_size: G.
        seed: of the draws.
    """

    def __init__(self, experts: Iterable[ExpertTrajectory], share: float, group_size: int, seed: int = 0) -> None:
        self.share, self._group_size, self._seed = share, group_size, seed
        self._steps: dict[str, tuple[str, ...]] = {}  # by text of the question
        for expert in experts:
            if expert.reward > 0 and expert.steps:
                self._steps.setdefault(_key(expert.question), expert.steps)
        self._right: defaultdict[int, deque[bool]] = defaultdict(lambda: deque(maxlen=WINDOW))  # by steps left to the policy
        self._refused: set[str] = set()  # questions whose environment or budget did not take their steps
        self._asked = self._without = 0  # that may begin behind steps, and of them those that have none; since the last batch

    def __len__(self) -> int:
        """Return questions that can begin behind steps at all."""
        return sum(len(steps) > FEWEST_LEFT for steps in self._steps.values())

    def begun(self, place: int, question: Question) -> Question:
        """Return the question, with the given first steps of its trajectories if it is to have any."""
        steps = self._steps.get(_key(question), ())
        self._asked += 1
        self._without += not steps
        if len(steps) <= FEWEST_LEFT or _key(question) in self._refused:
            return question
        rng = random.Random(f"{self._seed}/{place}")
        choices = range(FEWEST_LEFT, len(steps) + 1)
        (left,) = rng.choices(choices, [self._signal(left) for left in choices])
        return replace(question, start=steps[: len(steps) - left])

    def _signal(self, left: int) -> float:
        outcomes = self._right.get(left, ())
        return signal_chance(success_rate(sum(outcomes), len(outcomes)), self._group_size)

    def learn(self, groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
        """Count the outcomes of finished groups, and return their metrics: ``starts/...``."""
        started = []
        for group in groups:
            if group.question.expected:
                continue
            steps, given = self._steps.get(_key(group.question), ()), group.question.start
            if given:
                started.append(group)
            if given and any(trajectory.start_refused for trajectory in group.trajectories):
                self._refused.add(_key(group.question))
            elif steps:
                self._right[len(steps) - len(given)].extend(t.correct for t in group.counted if not t.hybrid)
        right = [t.correct for group in started for t in group.counted]
        values = {
            "groups": float(len(started)),
            "given": sum(len(group.question.start) for group in started) / max(len(started), 1),  # steps
            "accuracy": sum(right) / max(len(right), 1),
            "asked": float(self._asked),
            "groups_without": float(self._without),
            "refused": float(len(self._refused)),
            **{f"right_of/{left}": sum(seen) / len(seen) for left, seen in sorted(list(self._right.items())) if seen},
        }
        self._asked = self._without = 0
        return {f"starts/{name}": value for name, value in values.items()}

    def get_state(self) -> dict[str, Any]:
        """Return what checkpoints keep."""
        return {"right": {left: list(seen) for left, seen in list(self._right.items())}, "refused": sorted(self._refused)}

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint; None: of a run in which every trajectory began with its question."""
        state = state or {"right": {}, "refused": []}
        self._refused = set(state["refused"])
        self._right.clear()
        for left, seen in state["right"].items():
            self._right[int(left)].extend(seen)


class GuidedQuestions:
    """Questions in the order of the training; in some places single steps, and some behind steps of an expert.

    Args:
        order: of the questions.
        starts: knows the steps that questions begin behind; None: they all begin at their beginning.
        rows: single steps; None: there are none.
        unaided: knows how often questions are right without help; None: they all retrieve alike.
    """

    def __init__(
        self, order: QuestionCursor, starts: ExpertStarts | None, rows: ExpertRows | None, unaided: UnaidedSuccess | None = None
    ) -> None:
        self._order, self._starts, self._rows, self._unaided = order, starts, rows, unaided

    def take_places(self, count: int) -> list[tuple[int, Question]]:
        """Return the next ``count`` questions, each with its place."""
        return [(place, self._guided(place, question)) for place, question in self._order.take_places(count)]

    def _guided(self, place: int, question: Question) -> Question:
        where = spread(place)
        if self._unaided is not None:
            question = replace(question, retrieval_share=self._unaided.share(question))
        if self._rows is not None:
            if where < self._rows.share:
                return self._rows.row(place)
            where -= self._rows.share
        return self._starts.begun(place, question) if self._starts is not None and where < self._starts.share else question

    def put_back(self, places: Iterable[int]) -> None:
        """Ask these again."""
        self._order.put_back(places)


def _key(question: Question) -> str:
    """Return what tells questions apart: two data sets number them alike, so it is the text; seeds alone have none."""
    return question.text.strip() or question.id
