"""The policy's own earlier successes, kept to be trained on again (algorithm.md section 11; RLEP, arXiv 2507.07451).

    groups of a step --remember (after the update)--> newest successes of each question --draw (later)--> off_policy.py

What is replayed has the tokens and logprobs that were recorded when it was sampled: π_old of its ratio is the policy of then.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rapo_rllib.types import REPLAY, Trajectory, TrajectoryGroup

PER_QUESTION = 4  # more of one question are older, and further from the policy
CAPACITY = 16384  # at 9 bytes a response token, with 4,096 each, 600 MB of the driver


@dataclass(frozen=True)
class StoredTrajectory:
    """A rollout in arrays, ``T`` response tokens and ``P`` of the prompt: 9 bytes a response token."""

    prompt_ids: np.ndarray  # [P] int32
    token_ids: np.ndarray  # [T] int32
    kinds: np.ndarray  # [T] int8
    logprobs: np.ndarray  # [T] float32, recorded when it was sampled, nats
    reward: float
    policy_version: int  # of the weights that wrote it
    end: str

    @classmethod
    def of(cls, trajectory: Trajectory) -> StoredTrajectory:
        """Make a stored trajectory of what training needs."""
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
        """Return a trajectory of origin ``replay``. Its steps and entropies are not kept: it has no retrieval reward."""
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
    """Successful rollouts of each question, the newest of them, and of so many questions.

    Args:
        per_question: trajectories kept of one question; a newer one takes the place of the oldest.
        capacity: trajectories kept of all; above, the question that was remembered longest ago is forgotten.
    """

    def __init__(self, per_question: int = PER_QUESTION, capacity: int = CAPACITY) -> None:
        self._per_question = per_question
        self._capacity = capacity
        self._by_question: dict[str, list[StoredTrajectory]] = {}  # in the order in which they were last remembered

    def __len__(self) -> int:
        return sum(map(len, self._by_question.values()))

    def draw(self, group: TrajectoryGroup, prompt_ids: Sequence[int], count: int, rng: random.Random) -> list[Trajectory]:
        """Draw at most ``count`` earlier successes; none that was written for another prompt, nor beside single steps."""
        if not group.question.is_whole:
            return []
        prompt = np.array(prompt_ids, dtype=np.int32)
        known = [t for t in self._by_question.get(group.question.id, ()) if np.array_equal(t.prompt_ids, prompt)]
        return [stored.replayed(group.question.id) for stored in rng.sample(known, min(count, len(known)))]

    def remember(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Keep the correct rollouts that ended by themselves."""
        for group in groups:
            new = [t for t in group.trajectories if t.correct and t.end not in ("error", "length") and t.num_trained]
            if not new or not group.question.is_whole:  # a success behind another's steps is not the policy's
                continue
            known = self._by_question.pop(group.question.id, [])
            stored = [StoredTrajectory.of(trajectory) for trajectory in new]
            self._by_question[group.question.id] = [*known, *stored][-self._per_question :]
        while len(self) > self._capacity:
            del self._by_question[next(iter(self._by_question))]

    def metrics(self) -> dict[str, float]:
        """Count what it holds."""
        return {"stored": float(len(self)), "questions": float(len(self._by_question))}

    def get_state(self) -> dict[str, list[StoredTrajectory]]:
        """Return what checkpoints keep."""
        return {name: list(stored) for name, stored in self._by_question.items()}

    def set_state(self, state: Mapping[str, list[StoredTrajectory]] | None) -> None:
        """Go on from a checkpoint; None: of a run that had no store."""
        self._by_question = {name: list(stored) for name, stored in (state or {}).items()}
