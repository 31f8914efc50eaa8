"""The trajectories of one question while they grow: who starts, who may retrieve, who forks, and what fills the budget.

    open -> N sessions -> fork after uncertain tool results (ARPO) -> refill when all have ended early -> TrajectoryGroup

Without ``branching`` all G sessions start at once and none is added. Either way exactly ``num_hybrid`` of them are hybrid: a
branch is what its origin is, and each kind forks within its own part of the budget. algorithm.md sections 3 and 10.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rapo_rllib.objective.branching import branch_probability, normalized_entropy_change, opening_entropy
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.engine import Completion
from rapo_rllib.rollout.session import Session
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.settings import BranchingSettings, RolloutSettings
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupPlan:
    """What all groups of a run have in common."""

    chat: ChatProtocol
    settings: RolloutSettings
    size: int  # G, or ARPO's budget M
    num_hybrid: int  # N_hybrid, at most ``size``
    retrieval_prob: float
    policy_version: int
    seed: int
    branching: BranchingSettings | None = None


def open_groups(questions: Sequence[Question], plan: GroupPlan) -> list[RolloutGroup]:
    """A group per question. One may come twice, where two epochs meet in a batch: the second has another name."""
    copies: Counter[str] = Counter()
    groups = []
    for question in questions:
        copies[question.id] += 1
        label = question.id if copies[question.id] == 1 else f"{question.id}#{copies[question.id]}"
        groups.append(RolloutGroup(f"{plan.policy_version}/{label}", question, plan))
    return groups


@dataclass
class RolloutGroup:
    """One group under way.

    ``name`` is unique in the run; coins and sampling seeds derive from it and from the path of a session (``3``, or ``3.1.0``
    for the first fork of session 3 at its step 1), never from timing.
    """

    name: str
    question: Question
    plan: GroupPlan
    sessions: list[Session] = field(default_factory=list)
    num_forks: int = 0
    num_refilled: int = 0

    def open(self) -> list[Session]:
        """The sessions that are sampled from the start."""
        size, branching = self.plan.size, self.plan.branching
        return self._start(size if branching is None else min(size, branching.initial or max(1, size // 2)))

    def fork(self, session: Session, completion: Completion) -> list[Session]:
        """Sessions that branch off ``session`` ahead of the step in ``completion``; none, most of the time.

        Called before the session takes the completion: tokens and environment stand right after the last tool result.
        """
        branching = self.plan.branching
        if branching is None or not completion.entropies:
            return []
        now = opening_entropy(completion.entropies, branching.entropy_tokens)
        if not session.trajectory.steps:
            session.opening_entropy = now
            return []
        if not session.trajectory.own_steps:
            return []  # it branched off at this very tool result
        room = min(branching.branches - 1, self._room_for(session.trajectory.hybrid))
        if room <= 0 or session.opening_entropy is None or not self._wants_fork(session, now):
            return []
        return [forked for branch in range(room) if (forked := self._forked(session, branch)) is not None]

    def _wants_fork(self, session: Session, now: float) -> bool:
        branching = self.plan.branching
        assert branching is not None and session.opening_entropy is not None
        change = normalized_entropy_change(now, session.opening_entropy, self.plan.chat.vocabulary_size)
        probability = branch_probability(change, branching.base_prob, branching.entropy_weight)
        if branching.rule == "coin":
            coin = self._rng(f"{session.path}/fork{len(session.trajectory.steps)}")  # whether there is room is up to timing
            return coin.random() < probability
        return probability > branching.threshold

    def _forked(self, session: Session, branch: int) -> Session | None:
        path = f"{session.path}.{len(session.trajectory.steps)}.{branch}"
        try:
            forked = session.fork(f"{self.name}/{path}", path, len(self.sessions), self._rng(path))
        except Exception:  # a user's environment, in a state that cannot be copied
            logger.warning("%s: its environment could not be copied, so it does not branch", session.name, exc_info=True)
            return None
        self.sessions.append(forked)
        self.num_forks += 1
        return forked

    def refill(self) -> list[Session]:
        """Fresh sessions for what is left of the budget, once all others have ended."""
        missing = self.plan.size - len(self.sessions)
        if missing <= 0 or not all(session.trajectory.end for session in self.sessions):
            return []
        self.num_refilled += missing
        return self._start(missing)

    def _room_for(self, hybrid: bool) -> int:
        """How many more hybrid, or on-policy, sessions belong into the group."""
        wanted = self.plan.num_hybrid if hybrid else self.plan.size - self.plan.num_hybrid
        return wanted - sum(session.trajectory.hybrid == hybrid for session in self.sessions)

    def _start(self, count: int) -> list[Session]:
        """``count`` fresh sessions, of which the last ones may retrieve: as many as are due, both kinds where two can be."""
        hybrid_room, room = self._room_for(True), self._room_for(True) + self._room_for(False)
        num_hybrid = round(hybrid_room / room * count)
        if count > 1:
            num_hybrid = min(max(num_hybrid, min(hybrid_room, 1)), count - min(room - hybrid_room, 1))
        started = []
        for index in range(count):
            member = len(self.sessions)
            trajectory = Trajectory(
                self.question.id,
                (),
                hybrid=index >= count - num_hybrid,
                policy_version=self.plan.policy_version,
                segments=[(0, member)],
            )
            path = str(member) if not self.num_refilled else f"fresh{member}"
            rng = self._rng(path)
            session = Session(
                f"{self.name}/{path}",
                path,
                self.question,
                trajectory,
                self.plan.chat,
                self.plan.settings,
                self.plan.retrieval_prob,
                rng,
            )
            self.sessions.append(session)
            started.append(session)
        return started

    def _rng(self, path: str) -> random.Random:
        return random.Random(f"{self.plan.seed}/{self.name}/{path}")

    def close(self, stats: RolloutStats) -> TrajectoryGroup:
        """Count what happened, once per event: what a branch took over was counted where it happened."""
        stats.forks += self.num_forks
        stats.refilled += self.num_refilled
        for session in self.sessions:
            trajectory = session.trajectory
            stats.ends[trajectory.end] += 1
            stats.prompt_tokens += len(trajectory.prompt_ids)
            stats.retrieval_skipped += session.retrieval_skipped
            stats.retrieval_wait_s += session.retrieval_wait_s
            stats.trajectory_s += trajectory.seconds
            for step in trajectory.own_steps:
                if step.tool is not None:
                    stats.tool_calls[step.tool] += 1
                    stats.tool_s += step.tool_seconds
                if step.tool is not None and step.tool_error:
                    stats.tool_failures[f"{step.tool}/{step.tool_error}"] += 1
        return TrajectoryGroup(self.question, [s.trajectory for s in self.sessions], self.plan.policy_version)
