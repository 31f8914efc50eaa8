"""The policy's own earlier successes, kept to be trained on again (algorithm.md section 11; RLEP, arXiv 2507.07451).

    groups of a step --remember (after the update)--> newest successes of each question --draw (later)--> off_policy.py

A replayed trajectory keeps the tokens and logprobs of its sampling: π_old of its ratio is the policy that sampled it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rapo_rllib.types import REPLAY, Trajectory, TrajectoryGroup

PER_QUESTION = 4  # further trajectories of a question would be older, and further from the policy
CAPACITY = 16384  # 600 MB of the driver's memory, at 4,096 response tokens each and 9 bytes a token


@dataclass(frozen=True)
class StoredTrajectory:
    """A rollout as arrays, with ``P`` prompt tokens and ``T`` response tokens, at 9 bytes per response token."""

    prompt_ids: np.ndarray  # [P] int32
    token_ids: np.ndarray  # [T] int32
    kinds: np.ndarray  # [T] int8
    logprobs: np.ndarray  # [T] float32, recorded when it was sampled, nats
    reward: float
    policy_version: int  # of the weights that wrote it
    end: str

    @classmethod
    def of(cls, trajectory: Trajectory) -> StoredTrajectory:
        """Store the parts of a trajectory that training needs."""
        return cls(
            np.array(trajectory.prompt_ids, dtype=np.int32),
            np.array(trajectory.token_ids, dtype=np.int32),
            np.array(trajectory.kinds, dtype=np.int8),
            np.array(trajectory.logprobs, dtype=np.float32),
            trajectory.reward,
            trajectory.policy_version,
            trajectory.end,
        )

    def replayed(self, question_id: str) -> Trajectory:
        """Restore a trajectory, of origin ``replay``. Steps and entropies are not stored, so it has no retrieval reward."""
        return Trajectory(
            question_id,
            self.prompt_ids.tolist(),
            policy_version=self.policy_version,
            origin=REPLAY,
            token_ids=self.token_ids.tolist(),
            kinds=self.kinds.tolist(),
            logprobs=self.logprobs.tolist(),
            entropies=[0.0] * len(self.token_ids),
            reward=self.reward,
            correct=True,
            end=self.end,
        )


class ReplayStore:
    """Store of the newest successful rollouts of each question, up to a total number.

    Args:
        per_question: most trajectories per question; a newer one replaces the oldest.
        capacity: most trajectories in all; above it, the question whose last success is oldest is forgotten.
    """

    def __init__(self, per_question: int = PER_QUESTION, capacity: int = CAPACITY) -> None:
        self._per_question = per_question
        self._capacity = capacity
        self._by_question: dict[str, list[StoredTrajectory]] = {}  # questions by their last success, oldest first

    def __len__(self) -> int:
        return sum(map(len, self._by_question.values()))

    def draw(self, group: TrajectoryGroup, prompt_ids: Sequence[int], count: int, rng: random.Random) -> list[Trajectory]:
        """Draw at most ``count`` earlier successes on this prompt; none for questions that are not whole (``is_whole``)."""
        if not group.question.is_whole:
            return []
        prompt = np.array(prompt_ids, dtype=np.int32)
        known = [t for t in self._by_question.get(group.question.id, ()) if np.array_equal(t.prompt_ids, prompt)]
        return [stored.replayed(group.question.id) for stored in rng.sample(known, min(count, len(known)))]

    def remember(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Store correct rollouts that ended by themselves, of whole questions (``is_whole``)."""
        for group in groups:
            new = [t for t in group.trajectories if t.correct and t.end not in ("error", "length") and t.num_trained]
            if not new or not group.question.is_whole:  # after given steps, a success is not the policy's alone
                continue
            known = self._by_question.pop(group.question.id, [])
            stored = [StoredTrajectory.of(trajectory) for trajectory in new]
            self._by_question[group.question.id] = [*known, *stored][-self._per_question :]
        while len(self) > self._capacity:
            del self._by_question[next(iter(self._by_question))]

    def metrics(self) -> dict[str, float]:
        """Count the stored trajectories and questions."""
        return {"stored": float(len(self)), "questions": float(len(self._by_question))}

    def get_state(self) -> dict[str, list[StoredTrajectory]]:
        """Return the stored trajectories by question, for a checkpoint."""
        return {name: list(stored) for name, stored in self._by_question.items()}

    def set_state(self, state: Mapping[str, list[StoredTrajectory]] | None) -> None:
        """Restore the state of a checkpoint; None if its run had no store."""
        self._by_question = {name: list(stored) for name, stored in (state or {}).items()}
