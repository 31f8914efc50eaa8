"""A rollout without an end: questions are added while others are under way, and complete groups are handed out.

    begin(questions) --> trajectories under way --advance--> complete groups
                              |  weights may change between two calls of ``advance``

``RolloutLoop.run`` waits for all of its questions. Here nothing waits: the caller adds questions when there is room, and may
give the engine new weights between two calls. A trajectory then goes on with the new weights, and ``Trajectory.token_versions``
records which version wrote each of its tokens. A group that has become too old is given up, and counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from rapo_rllib.rollout.group import RolloutGroup, make_group
from rapo_rllib.rollout.loop import Observer, RolloutLoop, Run
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.types import Question, TrajectoryGroup


class RolloutStream:
    """Groups under way on one engine.

    Args:
        loop: has engine, environments and retriever; its ``run`` may be called between two calls of ``advance``.
        observer: told of every trajectory.
        on_end: called whenever a trajectory has ended.
    """

    def __init__(self, loop: RolloutLoop, observer: Observer | None = None, on_end: Callable[[], None] = lambda: None) -> None:
        self._loop, self._on_end = loop, on_end
        self.stats = RolloutStats()
        self._run = Run(loop, self.stats, self._note_end, observer, one_version=False)
        self._groups: dict[int, RolloutGroup] = {}
        self._some_ended = False  # whether a trajectory has ended since the last look for complete groups
        self._copies: Counter[str] = Counter()  # of each question that began with the present version of the weights
        self._copies_of = -1

    @property
    def under_way(self) -> list[int]:
        """Places of the questions with incomplete groups."""
        return list(self._groups)

    def begin(self, places: Iterable[tuple[int, Question]], retrieval_prob: float, env_steps: int | None = None) -> None:
        """Begin a group for each question; the question's place in the order of training identifies the group."""
        plan = self._loop.plan(retrieval_prob, env_steps=env_steps)
        if plan.policy_version != self._copies_of:
            self._copies, self._copies_of = Counter(), plan.policy_version
        for place, question in places:
            group = self._groups[place] = make_group(question, plan, self.stats, self._copies)
            self._run.begin(group)

    def give_up(self, places: Iterable[int]) -> None:
        """Drop the incomplete groups at these places; a place whose group is complete or unknown is ignored."""
        for place in places:
            group = self._groups.pop(place, None)
            if group is not None:
                self._run.give_up(group)

    def advance(self, seconds: float) -> list[tuple[int, TrajectoryGroup]]:
        """Roll out until a group is complete, for about ``seconds`` at most; return complete groups with their places.

        Raises:
            EngineError: the engine broke; nothing of the stream is left.
        """
        started, waited = time.monotonic(), self._run.waited_s
        try:
            while not (complete := self._complete()) and self._groups and time.monotonic() - started < seconds:
                self._run.tick()
        except BaseException:
            self.close()
            raise
        self.stats.seconds += time.monotonic() - started
        self.stats.idle_s += self._run.waited_s - waited
        return complete

    def _note_end(self) -> None:
        self._some_ended = True
        self._on_end()

    def _complete(self) -> list[tuple[int, TrajectoryGroup]]:
        if not self._some_ended:
            return []
        self._some_ended = False
        places = [place for place, group in self._groups.items() if group.is_complete]
        return [(place, self._groups.pop(place).close()) for place in places]

    def close(self) -> None:
        """End all trajectories under way."""
        self._groups.clear()
        self._run.abort()
