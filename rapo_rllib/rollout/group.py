"""The growing trajectories of one question: when they start, which of them are hybrid, and when they fork.

    open -> N episodes -> fork after uncertain tool results (ARPO) -> refill when all have ended early -> TrajectoryGroup

Without ``branching`` all G episodes start at once and none is added. Either way ``num_hybrid`` of them are hybrid: a
branch is hybrid if its origin is, and each kind forks within its own part of the budget. With ``hybrid_groups: failed`` hybrid
episodes start when the others have ended, and only if none of those is right. algorithm.md sections 3 and 10.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from dataclasses import dataclass, field

from rapo_rllib.objective.entropy import branch_probability, normalized_entropy_change, step_entropy
from rapo_rllib.rollout.engine import Completion
from rapo_rllib.rollout.episode import Episode, RunPlan
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.settings import BranchingSettings
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)


def make_group(question: Question, plan: RunPlan, stats: RolloutStats, copies: Counter[str]) -> RolloutGroup:
    """Make the group of a question. A question that two epochs bring into one run gets a second name, by ``copies``.

    Greedy groups have names of their own: a stream under way on the same engine may hold a question with the same id.
    """
    copies[question.id] += 1
    label = question.id if copies[question.id] == 1 else f"{question.id}#{copies[question.id]}"
    version = f"greedy-{plan.policy_version}" if plan.greedy else plan.policy_version
    return RolloutGroup(f"{version}/{label}", question, plan, stats)


@dataclass
class RolloutGroup:
    """The growing group of one question."""

    name: str  # unique in the run
    question: Question
    plan: RunPlan
    stats: RolloutStats
    episodes: list[Episode] = field(default_factory=list)
    given_up: bool = False  # it is no longer needed

    def open(self) -> list[Episode]:
        """Make the episodes that are sampled from the start."""
        size, branching = self.plan.size, self.plan.branching
        if self._helps_who_failed:
            return self._fresh(size - self._num_hybrid, 0)
        count = size if branching is None else min(size, branching.initial or max(1, size // 2))
        return self._fresh(count, self._due(count))

    @property
    def _num_hybrid(self) -> int:
        return self.plan.num_hybrid if self.question.is_whole else 0  # no trajectory behind given steps retrieves

    @property
    def _helps_who_failed(self) -> bool:
        """Whether hybrid episodes start only when the other episodes have ended, and none of those is right."""
        return self.plan.settings.hybrid_groups == "failed" and 0 < self._num_hybrid < self.plan.size

    @property
    def is_complete(self) -> bool:
        """Whether all trajectories of the group have ended."""
        return len(self.episodes) == self.plan.size and all(episode.trajectory.end for episode in self.episodes)

    def refill(self) -> list[Episode]:
        """Make fresh episodes that fill the group once all others have ended; until then, none."""
        missing = self.plan.size - len(self.episodes)
        if missing <= 0 or self.given_up or not all(episode.trajectory.end for episode in self.episodes):
            return []
        if self._helps_who_failed:
            right = any(episode.trajectory.correct for episode in self.episodes)
            return self._fresh(missing, 0 if right else missing, "fresh")
        self.stats.refilled += missing
        return self._fresh(missing, self._due(missing), "fresh")

    def _due(self, count: int) -> int:
        """Count the hybrid ones among ``count`` fresh episodes: in proportion to the room, but one of each kind if possible."""
        hybrid_room, room = self._room_for(True), self._room_for(True) + self._room_for(False)
        num_hybrid = round(hybrid_room / room * count)
        if count > 1:
            num_hybrid = min(max(num_hybrid, min(hybrid_room, 1)), count - min(room - hybrid_room, 1))
        return num_hybrid

    def _fresh(self, count: int, num_hybrid: int, prefix: str = "") -> list[Episode]:
        """Make ``count`` episodes, of which the last ``num_hybrid`` are hybrid."""
        for index in range(count):
            member = len(self.episodes)
            hybrid, version = index >= count - num_hybrid, self.plan.policy_version
            trajectory = Trajectory(self.question.id, (), hybrid=hybrid, policy_version=version, segments=[(0, member)])
            self.episodes.append(Episode(f"{self.name}/{prefix}{member}", self.question, self.plan, trajectory))
        return self.episodes[-count:]

    def _room_for(self, hybrid: bool) -> int:
        """Return the number of hybrid, or on-policy, episodes that the group still lacks."""
        wanted = self._num_hybrid if hybrid else self.plan.size - self._num_hybrid
        return wanted - sum(episode.trajectory.hybrid == hybrid for episode in self.episodes)

    def fork(self, episode: Episode, completion: Completion) -> list[Episode]:
        """Make the episodes that branch off ``episode`` before the step in ``completion``; mostly there are none.

        Called before the episode takes the completion: tokens and environment stand right after the last tool result.
        """
        branching = self.plan.branching
        if branching is None or not completion.entropies:
            return []
        now = step_entropy(completion.entropies, branching.entropy_tokens)
        if not episode.trajectory.steps:
            episode.opening_entropy = now
            return []
        if not episode.trajectory.own_steps:
            return []  # it branched off at this very tool result
        room = min(branching.branches - 1, self._room_for(episode.trajectory.hybrid))
        if room <= 0 or (before := episode.opening_entropy) is None or not self._wants_fork(episode, branching, before, now):
            return []
        return [forked for branch in range(room) if (forked := self._forked(episode, branch)) is not None]

    def _wants_fork(self, episode: Episode, branching: BranchingSettings, before: float, now: float) -> bool:
        change = normalized_entropy_change(now, before, len(self.plan.chat.tokenizer))
        probability = branch_probability(change, branching.base_prob, branching.entropy_weight)
        if branching.rule == "coin":  # not of the episode's generator: whether there is room depends on timing
            coin = random.Random(f"{self.plan.seed}/{episode.name}/fork{len(episode.trajectory.steps)}")
            return coin.random() < probability
        return probability > branching.threshold

    def _forked(self, episode: Episode, branch: int) -> Episode | None:
        try:
            forked = episode.fork(branch, len(self.episodes))
        except Exception:  # a user's environment, in a state that cannot be copied
            logger.warning("%s: its environment could not be copied, so it does not branch", episode.name, exc_info=True)
            return None
        self.episodes.append(forked)
        self.stats.forks += 1
        return forked

    def discard(self) -> None:
        """Count generated tokens and tool calls of an abandoned group."""
        for episode in self.episodes:
            self.stats.add_given_up(episode.trajectory)

    def close(self) -> TrajectoryGroup:
        """Return the trajectories, and count each event once: the steps that a branch took over count for its origin only."""
        trajectories = [episode.trajectory for episode in self.episodes]
        for trajectory in trajectories:
            self.stats.add(trajectory)
        return TrajectoryGroup(self.question, trajectories, self.plan.policy_version)
