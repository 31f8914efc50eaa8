"""Ledger of the place and age of every question: the rules of ``max_staleness``, and nothing else.

    cursor --hand_out--> under way on an engine --complete--> complete --take--> the batch of an update
      ^                        |                      |
      +------ again -----------+---- too old ---------+

``version`` counts the updates of the policy. Let k be ``max_staleness``. An update from version V trains on groups that were
begun by version V - k or a newer one, so no token in them is older. An update takes B groups, the oldest first. At most
``(k + 1) * B`` questions (``k * B`` while an update is under way) are out or wait to be trained on. With k = 0 an update takes
all questions that were handed out, and nothing is under way beside it.

Engines run ahead only as far as is useful. While the learner has its groups, engines begin at most the next batch: groups of
the newest weights and spare complete groups are at most B together. Otherwise fast engines would fill all batches, and every
token would be k updates old for nothing. While the learner waits, engines may use all the room.

A group that is incomplete at its last chance is too old. With ``stale_groups: drop`` it is dropped and counted, and its
question is asked again; the next time the update waits for it, so that slow questions are trained on, too. With ``wait`` the
update waits the first time. No question is lost: each is out, complete, in the cursor, trained on, or rejected (``judge``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rapo_rllib.envs.expert_starts import GuidedQuestions
from rapo_rllib.types import Question, TrajectoryGroup


@dataclass(frozen=True)
class Out:
    """A question that an engine was given."""

    runner: int
    version: int  # of the policy when it was handed out; its group is begun by this version or a newer one
    retrieval_prob: float


@dataclass(frozen=True)
class Complete:
    """A complete group that has not been trained on yet."""

    place: int
    group: TrajectoryGroup
    retrieval_prob: float
    judged: bool = False  # ``judge`` has accepted it


class QuestionLedger:
    """Record of the questions of a training: in the cursor, on an engine, or complete.

    Args:
        cursor: source of the questions; questions that are to be asked again go back to it.
        batch_size: B, groups of an update.
        max_staleness: k.
        waits: True for ``stale_groups: wait``.
        max_rounds: with dynamic sampling, the most batches of groups that are judged for one update; else 1.
    """

    def __init__(
        self, cursor: GuidedQuestions, batch_size: int, max_staleness: int, waits: bool = False, max_rounds: int = 1
    ) -> None:
        self._cursor, self.batch_size, self.max_staleness, self._waits = cursor, batch_size, max_staleness, waits
        self._max_rounds = max_rounds
        self.version = 0
        self.updating = False  # a batch was taken, and its update has not ended
        self.out: dict[int, Out] = {}  # by place in the cursor's order
        self.complete: dict[int, Complete] = {}
        self.rejected: list[TrajectoryGroup] = []  # since the last batch
        self._dropped_before: set[int] = set()  # places whose group was too old once
        self.num_stale = 0  # groups that were dropped as too old, since the last batch
        self.num_again = 0  # questions lost with their engine, since the last batch

    @property
    def room(self) -> int:
        """Number of questions that may be handed out now."""
        batches = self.max_staleness + (0 if self.updating else 1)
        room = batches * self.batch_size - len(self.out) - len(self.complete)
        if self.max_staleness == 0:  # nothing may be under way when the batch is taken
            return max(min(room, self._max_rounds * self.batch_size - self._num_looked_at - len(self.out)), 0)
        behind = len(self.complete) - (0 if self.updating else self.batch_size)  # complete, and not of this update
        if behind < 0:  # the learner waits
            return max(room, 0)
        fresh = sum(out.version == self.version for out in self.out.values())
        return max(min(room, self.batch_size - behind - fresh), 0)

    @property
    def _num_looked_at(self) -> int:
        return len(self.complete) + len(self.rejected)

    def hand_out(self, runner: int, count: int, retrieval_prob: float = 0.0) -> list[tuple[int, Question]]:
        """Hand out up to ``count`` questions to an engine; return them with their places, questions asked again first."""
        taken = self._cursor.take_places(min(count, self.room))
        for place, _ in taken:
            self.out[place] = Out(runner, self.version, retrieval_prob)
        return taken

    def came_back(self, place: int, group: TrajectoryGroup) -> None:
        """Enter a complete group; drop it if it is too old, and ignore it if its question was given up meanwhile."""
        out = self.out.pop(place, None)
        if out is None:
            return
        if self._too_old(group.policy_version):
            self._drop(place)
        else:
            self.complete[place] = Complete(place, group, out.retrieval_prob)

    def lost(self, runner: int, kept: Iterable[int] = ()) -> int:
        """Put the questions that an engine lost back into the cursor, all but the places ``kept``; return their number."""
        places = [place for place, out in self.out.items() if out.runner == runner and place not in set(kept)]
        for place in places:
            del self.out[place]
        self._cursor.put_back(places)
        self.num_again += len(places)
        return len(places)

    def load(self, runner: int) -> int:
        """Count the questions that an engine has under way."""
        return sum(out.runner == runner for out in self.out.values())

    def judge(self, prepare: Callable[[TrajectoryGroup], TrajectoryGroup], accepts: Callable[[TrajectoryGroup], bool]) -> None:
        """Pass complete groups that are not judged yet through ``prepare``, and reject groups that ``accepts`` refuses."""
        for place, found in list(self.complete.items()):
            if found.judged:
                continue
            group = prepare(found.group)
            if accepts(group):
                self.complete[place] = Complete(place, group, found.retrieval_prob, judged=True)
            else:
                del self.complete[place]
                self._dropped_before.discard(place)
                self.rejected.append(group)

    @property
    def enough(self) -> bool:
        """Whether an update can begin: it has its groups, and no group under way must be waited for."""
        looked_at_enough = self._max_rounds > 1 and self._num_looked_at >= self._max_rounds * self.batch_size
        if len(self.complete) < self.batch_size and not looked_at_enough:
            return False
        return not any(self._must_wait(place, out) for place, out in self.out.items())

    def _must_wait(self, place: int, out: Out) -> bool:
        last_chance = self.version - out.version >= self.max_staleness
        return last_chance and (self._waits or self.max_staleness == 0 or place in self._dropped_before)

    def take(self) -> list[Complete]:
        """Take the oldest complete groups as the batch, in the order of their questions."""
        oldest = sorted(self.complete.values(), key=lambda found: (found.group.policy_version, found.place))
        batch = sorted(oldest[: self.batch_size], key=lambda found: found.place)
        for found in batch:
            del self.complete[found.place]
            self._dropped_before.discard(found.place)
        self.updating = True
        return batch

    def begin_batch(self) -> None:
        """Reset the counts and the rejected groups for the next batch."""
        self.rejected, self.num_stale, self.num_again = [], 0, 0

    def set_version(self, version: int) -> dict[int, list[int]]:
        """Set the version after an update, drop groups that are now too old, and return the places each engine may give up."""
        self.version, self.updating = version, False
        for place in [place for place, found in self.complete.items() if self._too_old(found.group.policy_version)]:
            del self.complete[place]
            self._drop(place)
        given_up: dict[int, list[int]] = {}
        for place, out in list(self.out.items()):
            if self._too_old(out.version):
                del self.out[place]
                self._drop(place)
                given_up.setdefault(out.runner, []).append(place)
        return given_up

    def _too_old(self, version: int) -> bool:
        return self.version - version > self.max_staleness

    def _drop(self, place: int) -> None:
        self._dropped_before.add(place)
        self._cursor.put_back([place])
        self.num_stale += 1

    @property
    def untrained(self) -> list[int]:
        """Places of questions that were handed out and that no update has taken; after a restore they are asked again."""
        return sorted([*self.out, *self.complete])

    def forget(self) -> None:
        """Drop all groups that are not trained on, as the cursor is set to another place."""
        self.out.clear()
        self.complete.clear()
        self._dropped_before.clear()
        self.begin_batch()
        self.updating = False


def shares(room: int, requests: Mapping[int, int], capacity: int, group_size: int) -> dict[int, int]:
    """Distribute questions over engines: each goes to the engine with the fewest requests, as long as that engine has room.

    Other questions wait for the first engine that frees up: with fixed shares the longest trajectories would set the pace.

    Example: room for 3 questions of 4 trajectories, engines with 0 and 6 requests, of a capacity of 8: the first gets 2 (0,
    then 4 requests), the second 1.

    Args:
        room: questions that may be handed out.
        requests: number that each engine has, with those of questions that it was given and has not begun.
        capacity: requests that an engine computes side by side (``max_num_seqs``).
        group_size: requests of a question.

    Returns:
        Number of questions for each engine, also if it is 0.
    """
    loads, given = dict(requests), dict.fromkeys(requests, 0)
    for _ in range(room):
        emptiest = min(loads, key=lambda engine: (loads[engine], given[engine], engine), default=None)
        if emptiest is None or loads[emptiest] >= capacity:
            break
        loads[emptiest] += group_size
        given[emptiest] += 1
    return given
