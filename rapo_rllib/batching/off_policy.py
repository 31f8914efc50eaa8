"""Off-policy mixing by trajectory: whole trajectories of other policies join a group (algorithm.md section 11).

    TrajectoryGroup (rollouts) --OffPolicyMixing.mixed--> TrajectoryGroup with ``off_policy`` --> samples.py
    sources: ExpertSource (LUFFY: another agent's), or ReplayStore (replay.py: the policy's own earlier trajectories)

They are added to the ``G`` rollouts, so a question without a stored trajectory keeps a whole group. The draw depends only on
seed, weight version, question and stored trajectories.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from rapo_rllib.batching.replay import ReplayStore
from rapo_rllib.errors import RequestError
from rapo_rllib.protocol.expert_tokens import expert_step, expert_tokens
from rapo_rllib.protocol.make import RolloutProtocol
from rapo_rllib.types import ExpertTrajectory, Question, Trajectory, TrajectoryGroup


class ExpertSource:
    """Source of another agent's trajectories, by question; only those with a positive reward are kept.

    Args:
        experts: all trajectories of the agent; they are held as texts.
        chat: writes a drawn trajectory as the policy would have written it.
        max_response_tokens: longer trajectories are skipped.
    """

    def __init__(self, experts: Iterable[ExpertTrajectory], chat: RolloutProtocol, max_response_tokens: int) -> None:
        self._chat = chat
        self._max_response_tokens = max_response_tokens
        self._by_question: dict[str, list[ExpertTrajectory]] = {}
        self.too_long = self.unwritten = 0
        for expert in experts:
            if expert.reward > 0:
                self._by_question.setdefault(_key(expert.question), []).append(expert)

    def __len__(self) -> int:
        return sum(map(len, self._by_question.values()))

    def draw(self, group: TrajectoryGroup, prompt_ids: Sequence[int], count: int, rng: random.Random) -> list[Trajectory]:
        """Draw at most ``count`` of the agent's trajectories for this question, as tokens; for a single step, its step."""
        known = self._by_question.get(_key(group.question), ())
        drawn: list[Trajectory] = []
        possible: list[Callable[[], Trajectory]]
        if group.question.expected:
            possible = [lambda: expert_step(group, self._chat)]
        else:
            every, version = rng.sample(known, len(known)), group.policy_version
            possible = [partial(expert_tokens, expert, prompt_ids, self._chat, version) for expert in every]
        for write in possible:
            if len(drawn) == count:
                break
            try:
                trajectory = write()
            except RequestError:
                self.unwritten += 1
                continue
            if len(trajectory.token_ids) <= self._max_response_tokens:
                drawn.append(trajectory)
            else:
                self.too_long += 1
        return drawn

    def metrics(self) -> dict[str, float]:
        """Count stored trajectories, and so far skipped draws: too long, or not writable in the policy's own form."""
        return {"stored": float(len(self)), "too_long": float(self.too_long), "unwritten": float(self.unwritten)}


class OffPolicyMixing:
    """Mixer that adds at most ``count`` trajectories of a source to every group.

    Args:
        source: of the trajectories.
        count: most trajectories per group.
        seed: of the draws.
    """

    def __init__(self, source: ExpertSource | ReplayStore, count: int, seed: int = 0) -> None:
        self.source = source
        self._count = count
        self._seed = seed

    def mixed(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """Add off-policy members to the groups; a group whose rollouts all failed stays unchanged."""
        return [self._mixed(group) for group in groups]

    def _mixed(self, group: TrajectoryGroup) -> TrajectoryGroup:
        counted = group.counted
        if not counted or (group.question.start and not group.question.expected):  # no whole ones follow given steps
            return group
        rng = random.Random(f"{self._seed}/{group.policy_version}/{group.question.id}")
        return replace(group, off_policy=self.source.draw(group, counted[0].prompt_ids, self._count, rng))

    def metrics(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Compute metrics of the off-policy members of these groups, named ``off_policy/...``."""
        added = [t for group in groups for t in group.off_policy]
        ages = [group.policy_version - t.policy_version for group in groups for t in group.off_policy]
        values = {
            "trajectories": float(len(added)),
            "tokens": float(sum(t.num_trained for t in added)),
            "groups_without": float(sum(not group.off_policy for group in groups if group.question.is_whole)),
            "reward": sum(t.reward for t in added) / max(len(added), 1),
            "age": sum(ages) / max(len(ages), 1),  # weight versions
            **self.source.metrics(),
        }
        return {f"off_policy/{name}": value for name, value in values.items()}


def _key(question: Question) -> str:
    """Return the key of a question: its text, as data sets may use the same ids; the id if there is no text (seeds only)."""
    return question.text.strip() or question.id
