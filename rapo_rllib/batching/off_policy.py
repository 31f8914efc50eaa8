"""Trajectory-level off-policy mixing: whole trajectories of others join a group (algorithm.md section 11).

    TrajectoryGroup (rollouts) --OffPolicyMixing.mixed--> TrajectoryGroup with ``off_policy`` --> samples.py
    its source: ExpertSource (LUFFY: another agent's) or ReplayStore (replay.py: the policy's own earlier ones)

They come on top of the ``G`` rollouts: a question that nothing is known of keeps a whole group. What is drawn depends on seed,
weights and question alone.
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
    """Trajectories of another agent, by question; those with a positive reward.

    Args:
        experts: all of them; held as texts.
        chat: writes those that are drawn as the policy would have.
        max_response_tokens: longer ones are passed over.
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
        """Return at most ``count`` trajectories of the agent for this question, as tokens; for a single step, its step."""
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
        """Count them, and those that were too long, or had no form of the policy's own, so far."""
        return {"stored": float(len(self)), "too_long": float(self.too_long), "unwritten": float(self.unwritten)}


class OffPolicyMixing:
    """Adds ``count`` trajectories of a source to every group.

    Args:
        source: where they come from.
        count: at most so many per group.
        seed: of the draws.
    """

    def __init__(self, source: ExpertSource | ReplayStore, count: int, seed: int = 0) -> None:
        self.source = source
        self._count = count
        self._seed = seed

    def mixed(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """Return the groups with off-policy members added; a group whose rollouts all failed stays unchanged."""
        return [self._mixed(group) for group in groups]

    def _mixed(self, group: TrajectoryGroup) -> TrajectoryGroup:
        counted = group.counted
        if not counted or (group.question.start and not group.question.expected):  # begun inside, they are alone with that
            return group
        rng = random.Random(f"{self._seed}/{group.policy_version}/{group.question.id}")
        return replace(group, off_policy=self.source.draw(group, counted[0].prompt_ids, self._count, rng))

    def metrics(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Return the metrics of the off-policy members of these groups: ``off_policy/...``."""
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
    """Return what tells questions apart: two data sets number them alike, so it is the text; seeds alone have none."""
    return question.text.strip() or question.id
