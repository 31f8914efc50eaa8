"""Groups that begin after an expert's first steps on their question, and single-step groups (algorithm.md sections 13, 14).

    cursor --questions--> GuidedQuestions --some with ``start``--> env runners --groups--> ExpertStarts.learn

If a step is right with chance p, a reward for T right steps in a row has chance p^T; with all but the last two given, p^2.
The number of steps left to the policy is drawn by how likely outcomes within a group differ at present: from steps that are
always right, or never, the policy learns nothing. All members of a group begin with the same steps, so they share a baseline.
Given steps are history, as a tool's results are, and are not trained; the rest is on-policy.
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

_Row = tuple[str, str, tuple[str, ...]]  # id and text of the question, and the steps before this one
_DRAWS = 50  # tries to draw a row that was not refused; then a refused one is asked again
WINDOW = 64  # newest trajectories that a success rate is computed from
_GOLDEN = (math.sqrt(5) - 1) / 2
FEWEST_LEFT = 2  # least steps left to the policy: with one, it would learn that the step after given ones is the answer


class ExpertRows:
    """Single steps of an expert, each with the steps before it.

    Args:
        experts: trajectories, of which those with a positive reward are used.
        share: fraction of the groups that are single steps: a number, or a schedule over env steps.
        seed: of the draws.
    """

    def __init__(self, experts: Iterable[ExpertTrajectory], share: Any, seed: int = 0) -> None:
        self._share, self._seed = share, seed
        self._experts = [expert for expert in experts if expert.reward > 0 and expert.steps]
        self._rows = [(number, index) for number, expert in enumerate(self._experts) for index in range(len(expert.steps))]
        self._refused: set[_Row] = set()  # rows whose given steps environment, budget or chat template refused
        self.share = value_at(share, 0)

    def __len__(self) -> int:
        return len(self._rows)

    def reached(self, env_steps: int) -> None:
        """Set ``share`` by its schedule; ``env_steps``: generated steps that the training has sampled so far."""
        self.share = value_at(self._share, env_steps)

    def row(self, place: int) -> Question:
        """Draw the row for a place in the training's order, if possible one that was not refused so far."""
        rng = random.Random(f"{self._seed}/row/{place}")
        for _ in range(_DRAWS):
            number, index = rng.choice(self._rows)
            expert = self._experts[number]
            row = replace(expert.question, start=tuple(expert.steps[:index]), expected=expert.steps[index])
            if _row(row) not in self._refused:
                break
        return row

    def learn(self, groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
        """Note the refused rows of finished groups, and return the groups' metrics: ``single_steps/...``."""
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
        """Return the state for a checkpoint."""
        return sorted(self._refused)

    def set_state(self, state: Any) -> None:
        """Restore the state of a checkpoint; None: its run had no single steps."""
        self._refused = set(state or ())


def _row(question: Question) -> _Row:
    return question.id, question.text, question.start


def signal_chance(success: float, size: int) -> float:
    """Compute the probability that the outcomes in a group differ, so that it has a signal.

        1 - p^G - (1 - p)^G

    Args:
        success: p, chance that a trajectory is right.
        size: G, trajectories of the group.

    Returns:
        A chance. Example: p = 1/2, G = 2: 1/2.
    """
    return 1.0 - success**size - (1.0 - success) ** size


def success_rate(right: int, count: int) -> float:
    """Estimate the success rate of trajectories, ½ without data (Laplace's rule of succession).

        (r + 1) / (n + 2)

    Args:
        right: r, trajectories that are right.
        count: n, all trajectories.
    """
    return (right + 1) / (count + 2)


def spread(place: int) -> float:
    """Map a place in the training's order to a number in [0, 1); the numbers of consecutive places are spread evenly.

        frac((i + 1) φ),  φ = (√5 - 1) / 2

    The number depends on the place alone, not on time or process.

    Args:
        place: i, from 0.
    """
    return (place + 1) * _GOLDEN % 1.0


class ExpertStarts:
    """The expert's steps that questions begin after, and the policy's success rate by number of steps left to it.

    Args:
        experts: trajectories of another agent; for each question the first with a positive reward is used.
        share: fraction of the questions that may begin after such steps.
        group_size: G, trajectories of a group.
        seed: of the draws.
    """

    def __init__(self, experts: Iterable[ExpertTrajectory], share: float, group_size: int, seed: int = 0) -> None:
        self.share, self._group_size, self._seed = share, group_size, seed
        self._steps: dict[str, tuple[str, ...]] = {}  # by text of the question
        for expert in experts:
            if expert.reward > 0 and expert.steps:
                self._steps.setdefault(_key(expert.question), expert.steps)
        self._right: defaultdict[int, deque[bool]] = defaultdict(lambda: deque(maxlen=WINDOW))  # by steps left to the policy
        self._refused: set[str] = set()  # keys of questions whose given steps environment or budget refused
        self._asked = self._without = 0  # since the last ``learn``: calls of ``begun``, and those without steps

    def __len__(self) -> int:
        """Count the questions that can begin after given steps."""
        return sum(len(steps) > FEWEST_LEFT for steps in self._steps.values())

    def begun(self, place: int, question: Question) -> Question:
        """Return the question, with the steps that its trajectories are to begin after, if there are any."""
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
            "given": sum(len(group.question.start) for group in started) / max(len(started), 1),  # mean number of steps
            "accuracy": sum(right) / max(len(right), 1),
            "asked": float(self._asked),
            "groups_without": float(self._without),
            "refused": float(len(self._refused)),
            **{f"right_of/{left}": sum(seen) / len(seen) for left, seen in sorted(list(self._right.items())) if seen},
        }
        self._asked = self._without = 0
        return {f"starts/{name}": value for name, value in values.items()}

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"right": {left: list(seen) for left, seen in list(self._right.items())}, "refused": sorted(self._refused)}

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Restore the state of a checkpoint; None: in its run every trajectory began with the question."""
        state = state or {"right": {}, "refused": []}
        self._refused = set(state["refused"])
        self._right.clear()
        for left, seen in state["right"].items():
            self._right[int(left)].extend(seen)


class GuidedQuestions:
    """Questions in the training's order; single steps take some places, and some questions begin after an expert's steps.

    Args:
        order: order of the questions.
        starts: chooses the steps that questions begin after; None: no question begins after steps.
        rows: single steps; None: there are none.
        unaided: knows how often the policy is right without retrieval; None: all questions retrieve alike.
    """

    def __init__(
        self, order: QuestionCursor, starts: ExpertStarts | None, rows: ExpertRows | None, unaided: UnaidedSuccess | None = None
    ) -> None:
        self._order, self._starts, self._rows, self._unaided = order, starts, rows, unaided

    def take_places(self, count: int) -> list[tuple[int, Question]]:
        """Take the next ``count`` questions, each with its place."""
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
        """Put back the questions at these places, to be taken again."""
        self._order.put_back(places)


def _key(question: Question) -> str:
    """Return the key of a question: its text, as ids of two data sets may coincide; its id if it is only a seed."""
    return question.text.strip() or question.id
