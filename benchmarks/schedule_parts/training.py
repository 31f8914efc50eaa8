"""A training in simulated time: questions to engines, updates, new weights. The rules of streams are the package's own code."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from rapo_rllib.env_runner.stream.ledger import QuestionLedger, shares
from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.types import Question, TrajectoryGroup
from schedule_parts.engines import SimulatedEngine, Speed
from schedule_parts.lengths import Drawn


@dataclass(frozen=True)
class Job:
    """A job, the same for all schedules."""

    engines: int
    speed: Speed
    batch_size: int  # groups of an update
    group_size: int
    update_s_per_token: float  # of generated tokens that are trained on
    sync_s: float  # in which no engine generates
    updates: int
    warm_up: int  # updates that are not counted


@dataclass(frozen=True)
class Schedule:
    """A schedule: what waits for what."""

    name: str
    max_staleness: int
    waits: bool = False  # stale_groups: wait
    shared: bool = False  # engines and learner take turns on all GPUs
    fixed: bool = False  # a batch at a time in equal shares; no weights change under a trajectory (as before max_staleness)


@dataclass
class Figures:
    """Figures of a schedule, of the updates that count."""

    updates_per_hour: float
    engines_busy: float  # share of time
    learner_busy: float
    staleness_mean: float  # updates, from a group's beginning to its training
    staleness_max: int
    stale_share: float  # groups dropped as too old, of all that were begun


@dataclass
class _Group:
    question: Question
    place: int
    engine: int
    version: int
    left: int  # trajectories
    tokens: int = 0


class SimulatedTraining:
    """One schedule of a job; ``run`` plays it."""

    def __init__(self, job: Job, schedule: Schedule, drawn: Drawn) -> None:
        self.job, self.schedule, self._drawn = job, schedule, drawn
        self.engines = [SimulatedEngine(job.speed) for _ in range(job.engines)]
        self._cursor = QuestionCursor(SeedQuestions(100_000), seed=0)
        # fixed shares hand out a batch when the one before is complete: that is a ledger of k + 1 batches, all waited for
        self.ledger = QuestionLedger(self._cursor, job.batch_size, schedule.max_staleness, schedule.waits or schedule.fixed)
        self.now, self.version, self.learner_busy_s = 0.0, 0, 0.0
        self._tools: list[tuple[float, int]] = []  # heap of (seconds, sequence)
        self._events: list[tuple[float, int, int]] = []  # heap of (seconds, engine, stamp): when its next sequence ends
        self._stamps = [0] * job.engines  # of each engine's newest event; older ones are of no use
        self._groups: dict[int, _Group] = {}
        self._sequences: dict[int, tuple[_Group, Iterator[tuple[int, float]], float]] = {}
        self._tokens: dict[int, int] = {}  # of complete groups
        self._numbers = itertools.count()
        self._update_ends: float | None = None
        self._sync_ends: float | None = None
        self._room: int | None = None  # of the ledger, which walks over all questions; None: to be asked again
        self._begun = self._stale = 0
        self._ages: list[int] = []
        self._ends: list[tuple[float, float, float]] = []  # of updates: seconds, engines' and learner's busy seconds

    def run(self) -> Figures:
        """Play it to the end."""
        while len(self._ends) < self.job.warm_up + self.job.updates:
            self._hand_out()
            self._maybe_update()
            self._step()
        first, last = self._ends[self.job.warm_up - 1], self._ends[-1]
        seconds = last[0] - first[0]
        ages = self._ages[self.job.warm_up * self.job.batch_size :]
        return Figures(
            updates_per_hour=3600 * self.job.updates / seconds,
            engines_busy=(last[1] - first[1]) / seconds / self.job.engines,
            learner_busy=(last[2] - first[2]) / seconds,
            staleness_mean=sum(ages) / len(ages),
            staleness_max=max(ages),
            stale_share=self._stale / self._begun,
        )

    def _hand_out(self) -> None:
        if self._room is None:
            self._room = self.ledger.room
        if not self._room:
            return
        if self.schedule.fixed:
            room = min(self._room, self.job.batch_size) if not self.ledger.out and self._sync_ends is None else 0
            given = {engine: len(range(engine, room, self.job.engines)) for engine in range(self.job.engines)}
        else:
            loads = {index: engine.load for index, engine in enumerate(self.engines)}
            given = shares(self._room, loads, self.job.speed.capacity, self.job.group_size)
        for engine, count in given.items():
            if count:
                self._room = None
                for place, question in self.ledger.hand_out(engine, count):
                    self._begin(question, place, engine)

    def _begin(self, question: Question, place: int, engine: int) -> None:
        group = self._groups[place] = _Group(question, place, engine, self.version, self.job.group_size)
        self._begun += 1
        for member in range(self.job.group_size):
            number = next(self._numbers)
            self._sequences[number] = (group, iter(self._drawn.steps(f"{place}/{member}/{group.version}")), 0.0)
            self._next_step(number)

    def _next_step(self, number: int) -> None:
        """Generate the next step of a trajectory, or end it."""
        group, steps, _ = self._sequences[number]
        step = next(steps, None)
        if step is not None:
            group.tokens += step[0]
            self._sequences[number] = (group, steps, step[1])
            self.engines[group.engine].go_to(self.now)
            self.engines[group.engine].submit(number, step[0])
            self._expect(group.engine)
            return
        del self._sequences[number]
        group.left -= 1
        if not group.left:
            del self._groups[group.place]
            made = TrajectoryGroup(group.question, [], group.version)
            self._tokens[id(made)] = group.tokens
            self.ledger.came_back(group.place, made)
            self._room = None

    def _maybe_update(self) -> None:
        if self._update_ends is not None or self._sync_ends is not None or not self.ledger.enough:
            return
        batch, self._room = self.ledger.take(), None
        self._ages += [self.version - found.group.policy_version for found in batch]
        seconds = self.job.update_s_per_token * sum(self._tokens.pop(id(found.group)) for found in batch)
        self._update_ends = self.now + seconds
        self.learner_busy_s += seconds
        self._hand_out()

    def _step(self) -> None:
        """Go to the next event, and let it happen."""
        while self._events and self._events[0][2] != self._stamps[self._events[0][1]]:
            heapq.heappop(self._events)
        times = [heap[0][0] for heap in (self._events, self._tools) if heap]
        self.now = max(self.now, min(times + [time for time in (self._update_ends, self._sync_ends) if time is not None]))
        while self._events and self._events[0][0] <= self.now:
            _, index, stamp = heapq.heappop(self._events)
            if stamp == self._stamps[index]:
                self.engines[index].go_to(self.now)
                for number in self.engines[index].finished():
                    heapq.heappush(self._tools, (self.now + self._sequences[number][2], number))
                self._expect(index)
        while self._tools and self._tools[0][0] <= self.now:
            number = heapq.heappop(self._tools)[1]
            if number in self._sequences:
                self._next_step(number)
        if self._update_ends is not None and self._update_ends <= self.now:
            self._end_update()
        elif self._sync_ends is not None and self._sync_ends <= self.now:
            self._end_sync()

    def _expect(self, index: int) -> None:
        """Note when the next sequence of an engine ends, as things are now."""
        self._stamps[index] += 1
        time = self.engines[index].next_event()
        if time is not None:
            heapq.heappush(self._events, (time, index, self._stamps[index]))

    def _end_update(self) -> None:
        """New weights go out; with fixed shares when nothing is under way any more."""
        if self.schedule.fixed and self.ledger.out:
            self._update_ends = self.now + 0.05  # look again
            return
        self._update_ends, self._sync_ends = None, self.now + self.job.sync_s
        for index, engine in enumerate(self.engines):
            engine.go_to(self.now)
            engine.paused = True
            self._expect(index)

    def _end_sync(self) -> None:
        self._sync_ends = None
        self.version += 1
        for engine in self.engines:
            engine.go_to(self.now)
            engine.paused = False
        before, self._room = self.ledger.num_stale, None
        for engine, places in self.ledger.set_version(self.version).items():
            gone = {number for number, (group, _, _) in self._sequences.items() if group.place in set(places)}
            self.engines[engine].forget(gone)
            for number in gone:
                del self._sequences[number]
            for place in places:
                del self._groups[place]
        for index in range(self.job.engines):
            self._expect(index)
        self._stale += self.ledger.num_stale - before
        self._ends.append((self.now, sum(engine.busy_s for engine in self.engines), self.learner_busy_s))
