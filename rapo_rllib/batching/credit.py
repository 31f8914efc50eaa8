"""Advantages of a group's members: of every step, then of every token (docs/credit.md).

    rewards of steps --credit--> A of steps --(1 + a · A_ret), eq. 10--> of steps --spans--> of tokens --> samples.py

By default every step of a trajectory has the advantage of the trajectory, as in the paper.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from rapo_rllib.objective.advantages import (
    combined_advantages,
    compared_places,
    has_signal,
    kind_advantages,
    outcome_advantages,
    overlong_punishment,
    retrieval_advantages,
    shared_token_advantages,
)
from rapo_rllib.objective.retrieval_reward import trajectory_retrieval_reward
from rapo_rllib.objective.step_credit import Steps, state_advantages, state_groups
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Trajectory, TrajectoryGroup


def group_has_signal(group: TrajectoryGroup, objective: ObjectiveSettings) -> bool:
    """Check whether outcomes give any member an advantage. Lengths and retrieval rewards are not outcomes."""
    return members_without_signal(group, objective) < len(group.members)


def members_without_signal(group: TrajectoryGroup, objective: ObjectiveSettings) -> int:
    """Count the members without an outcome advantage: all that a member is compared with, if any, earned the same."""
    members = group.members
    parts = [[members[place] for place in places] for places in _compared(members, objective)]
    return sum(len(part) for part in parts if not _differ(part, objective))


def _compared(members: Sequence[Trajectory], objective: ObjectiveSettings) -> list[list[int]]:
    """List the indices of members that share a baseline: all members, or those with and those without retrievals."""
    by_kind = objective.advantage_baseline == "kind"
    return compared_places([bool(t.retrievals) if by_kind else None for t in members])


def _differ(members: Sequence[Trajectory], objective: ObjectiveSettings) -> bool:
    if objective.advantage_baseline == "kind" and len(members) == 1:
        return False
    if objective.credit == "trajectory":
        return has_signal([t.reward for t in members])
    earned = [_earned(trajectory) for trajectory in members]
    return any(bool((own != 0).any()) for own in _among(members, earned, objective))


def length_punishment(trajectory: Trajectory, objective: ObjectiveSettings) -> float:
    """Compute a trajectory's length punishment. Only rollouts have one: an off-policy length is nothing to learn from."""
    if trajectory.off_policy:
        return 0.0
    limit = objective.max_response_tokens
    length = len(trajectory.token_ids) + trajectory.unfitting_tokens
    return overlong_punishment(length, limit, objective.overlong_buffer_share * limit)


def _punishments(members: Sequence[Trajectory], objective: ObjectiveSettings) -> list[float]:
    """List length punishments, 0 where outcomes are equal: length alone would be normalised to full-size advantages."""
    found = [0.0] * len(members)
    for places in _compared(members, objective):
        if objective.overlong_buffer_share and _differ([members[place] for place in places], objective):
            for place in places:
                found[place] = length_punishment(members[place], objective)
    return found


def trajectory_advantages(group: TrajectoryGroup, objective: ObjectiveSettings) -> list[float]:
    """Compute one advantage per member, for its trajectory as a whole (eq. 9 and 10)."""
    std, epsilon = objective.normalize_std, objective.advantage_epsilon
    rewards = [t.reward + punished for t, punished in zip(group.members, _punishments(group.members, objective), strict=True)]
    if objective.advantage_baseline == "kind":
        outcome = kind_advantages(rewards, [bool(t.retrievals) for t in group.members], std, epsilon)
    else:
        outcome = outcome_advantages(rewards, std, epsilon)
    retrieval = _retrieval_advantages(group.members, objective)
    found: list[float] = combined_advantages(outcome, retrieval, objective.retrieval_advantage_weight).tolist()
    return found


def token_advantages(group: TrajectoryGroup, objective: ObjectiveSettings) -> list[np.ndarray]:
    """Compute the advantage of every response token, float32 ``[T]`` per member."""
    members = group.members
    if objective.credit == "trajectory":
        whole = trajectory_advantages(group, objective)
        found = [np.full(len(t.token_ids), own, dtype=np.float32) for t, own in zip(members, whole, strict=True)]
    else:
        steps = _step_advantages(members, objective)
        found = [_over_tokens(t, own) for t, own in zip(members, steps, strict=True)]
    if objective.branch_advantage != "hard":
        return found
    shared = shared_token_advantages([own.tolist() for own in found], [t.segments for t in members])
    return [values.numpy().astype(np.float32) for values in shared]


def _step_advantages(members: Sequence[Trajectory], objective: ObjectiveSettings) -> list[torch.Tensor]:
    """Compute the advantage of each step (eq. 10), float64 ``[K]`` per member."""
    earned = [_earned(t, punished) for t, punished in zip(members, _punishments(members, objective), strict=True)]
    outcome = _outcome_advantages(members, earned, objective)
    retrieval, weight = _retrieval_advantages(members, objective).double(), objective.retrieval_advantage_weight
    return [combined_advantages(a, own.expand(len(a)), weight) for a, own in zip(outcome, retrieval, strict=True)]


def _retrieval_advantages(members: Sequence[Trajectory], objective: ObjectiveSettings) -> torch.Tensor:
    z = [trajectory_retrieval_reward(trajectory, objective) for trajectory in members]
    return retrieval_advantages(z, objective.normalize_std, objective.advantage_epsilon)


def _outcome_advantages(members: Sequence[Trajectory], earned: Steps, objective: ObjectiveSettings) -> list[torch.Tensor]:
    """Compute a step's A_acc among members that share its baseline, 0 for a member alone; float64 ``[K]`` per member."""
    if objective.advantage_baseline == "group":
        return _among(members, earned, objective)
    found = [_doubles([0.0] * len(own)) for own in earned]
    for places in _compared(members, objective):
        if len(places) > 1:
            own = _among([members[place] for place in places], [earned[place] for place in places], objective)
            for place, advantages in zip(places, own, strict=True):
                found[place] = advantages
    return found


def _among(members: Sequence[Trajectory], earned: Steps, objective: ObjectiveSettings) -> list[torch.Tensor]:
    std, epsilon = objective.normalize_std, objective.advantage_epsilon
    whole = outcome_advantages(_doubles([sum(own) for own in earned]), std, epsilon)
    states = [step_states(trajectory) for trajectory in members]
    return [a + b for a, b in zip(whole, state_advantages(earned, states, objective.step_discount, std, epsilon), strict=True)]


def _earned(trajectory: Trajectory, punishment: float = 0.0) -> list[float]:
    """List the rewards of a trajectory's steps, ``[K]``; a trajectory without steps (a replayed one) is one step."""
    rewards = trajectory.step_rewards or [trajectory.reward]
    return [*rewards[:-1], rewards[-1] + punishment]


def step_states(trajectory: Trajectory) -> list[Hashable]:
    """List a key of the state that each step starts from: the environment's own key, else all tokens before the step."""
    tokens = np.array([*trajectory.prompt_ids, *trajectory.token_ids], dtype=np.int32)
    start = len(trajectory.prompt_ids)
    return [("state", step.state) if step.state else tokens[: start + step.start].tobytes() for step in trajectory.steps] or [
        tokens[:start].tobytes()
    ]


def grouped_steps(group: TrajectoryGroup, objective: ObjectiveSettings) -> int:
    """Count the steps that start from the same state as another step of the group; 0 unless ``credit`` is ``gigpo``."""
    if objective.credit != "gigpo":
        return 0
    return sum(map(len, state_groups([step_states(trajectory) for trajectory in group.members])))


def _over_tokens(trajectory: Trajectory, advantages: torch.Tensor) -> np.ndarray:
    """Spread advantages from steps to tokens; tokens between two steps, which are not trained, get the earlier step's."""
    values = advantages.numpy().astype(np.float32)
    starts = [0, *(step.start for step in trajectory.steps[1:]), len(trajectory.token_ids)]
    return np.repeat(values, np.diff(starts))


def _doubles(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)
