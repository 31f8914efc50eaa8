"""The objective from trajectories to one number, against a second implementation that shares no line with it (eq. 5 to 11)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_learner import trajectory

from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.objective.advantages import combined_advantages, outcome_advantages, retrieval_advantages
from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.objective.loss import aggregation_weight, policy_loss
from rapo_rllib.objective.retrieval_reward import trajectory_retrieval_reward
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Question, TokenKind, Trajectory, TrajectoryGroup

GROUPS, BATCH = 600, 12
SETTINGS = ObjectiveSettings(kl_coeff=0.02)
Numbers = dict[str, list[list[list[float]]]]  # name -> [group][trajectory][trained token]


def random_group(name: str, draw: random.Random) -> TrajectoryGroup:
    """2 to 16 trajectories; half of them may retrieve, up to three times; some rewards are equal, some members failed."""
    prompt, members = [draw.randrange(3, 50) for _ in range(draw.randint(1, 6))], []
    for index in range(size := draw.randint(2, 16)):
        parts: list[tuple[str, int]] = []
        for step in range(draw.randint(1, 4)):
            if step and index >= size // 2 and draw.random() < 0.7:
                parts.append(("retrieved", draw.randint(1, 5)))
            parts += [("policy", draw.randint(1, 6)), ("observation", draw.randint(1, 4))]
        reward = draw.choice([0.0, 0.0, 1.0, draw.uniform(-1, 2)])
        member = trajectory(name, prompt, parts[:-1], reward, seed=draw.randrange(10**6), hybrid=index >= size // 2)
        member.end = "error" if draw.random() < 0.03 else "answer"
        members.append(member)
    return TrajectoryGroup(Question(name, ""), members)


def trained(member: Trajectory) -> list[int]:
    return [place for place, kind in enumerate(member.kinds) if kind == TokenKind.POLICY]


def deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def standing(values: Sequence[float]) -> list[float]:
    """How far above the mean, in standard deviations."""
    if len(set(values)) <= 1:
        return [0.0] * len(values)
    mean, std = math.fsum(values) / len(values), deviation(values)
    return [(value - mean) / (std + 1e-6) for value in values]


def reward_of_retrievals(member: Trajectory) -> float:
    """The mean of tanh(2 (before - after) / before) times before, over retrievals between two steps."""
    entropies = [math.fsum(step) / len(step) for step in map(member.step_entropies, range(len(member.steps)))]
    found = []
    for retrieval in member.retrievals:
        if 0 <= (place := retrieval.after_step) < len(entropies) - 1:
            before, after = entropies[place], entropies[place + 1]
            found.append(math.tanh(2 * (before - after) / before) * before)
    return math.fsum(found) / len(found) if found else 0.0


def reference(groups: Sequence[TrajectoryGroup], numbers: Numbers) -> float:
    """The loss of a batch, token by token."""
    total, alive = 0.0, [group for group in groups if any(member.end != "error" for member in group.trajectories)]
    for g, group in enumerate(groups):
        members = [member for member in group.trajectories if member.end != "error"]
        outcome = standing([member.reward for member in members])
        retrieved = standing([reward_of_retrievals(member) for member in members])
        for i, member in enumerate(members):
            advantage = (1 + 0.2 * retrieved[i]) * outcome[i]
            share = sum(kind == TokenKind.RETRIEVED for kind in member.kinds) / len(member.kinds)
            new, old, engine, first = (numbers[name][g][i] for name in ("new", "old", "engine", "reference"))
            for t in range(len(new)):
                shaped = (1 + 0.05 * share) * math.exp(new[t] - old[t])
                kept = min(max(shaped, 0.8), 1.28)
                bounded = min(shaped * advantage, kept * advantage)
                gap = first[t] - new[t]
                term = min(math.exp(old[t] - engine[t]), 2.0) * bounded - 0.02 * (math.exp(gap) - 1 - gap)
                total += term / (len(new) * len(members) * len(alive))
    return -total


def random_numbers(groups: Sequence[TrajectoryGroup], draw: random.Random) -> Numbers:
    """Log-probabilities of four policies that are some way apart."""
    names, found = ("new", "old", "engine", "reference"), {}
    for name in names:
        found[name] = [
            [[-abs(draw.gauss(1, 1)) + draw.gauss(0, 0.2) for _ in trained(member)] for member in group.members]
            for group in groups
        ]
    return found


def ours(groups: Sequence[TrajectoryGroup], numbers: Numbers) -> float:
    """The same of the package's functions, in float64."""
    alive, rows = sum(bool(group.members) for group in groups), []
    for g, group in enumerate(groups):
        if not group.members:
            continue
        rewards = torch.tensor([member.reward for member in group.members], dtype=torch.float64)
        z = torch.tensor([trajectory_retrieval_reward(t, SETTINGS) for t in group.members], dtype=torch.float64)
        advantages = combined_advantages(
            outcome_advantages(rewards), retrieval_advantages(z), SETTINGS.retrieval_advantage_weight
        )
        for i, member in enumerate(group.members):
            count = len(trained(member))
            weight = aggregation_weight(count, len(group.members), alive, 0, SETTINGS.loss_aggregation)
            for t in range(count):
                logprobs = [numbers[name][g][i][t] for name in ("new", "old", "engine", "reference")]
                rows.append([*logprobs, float(advantages[i]), member.retrieved_share, weight])
    new, old, engine, first, advantage, share, weights = torch.tensor(rows, dtype=torch.float64).T
    given: dict[str, Any] = {"rollout_logprobs": engine, "reference_logprobs": first}
    return float(policy_loss(LossInputs(new, old, advantage, share, weights, **given), SETTINGS).loss)


@pytest.mark.parametrize("seed", range(GROUPS // BATCH))
def test_the_objective_is_the_references(seed: int) -> None:
    draw = random.Random(seed)
    groups = [random_group(f"q{index}", draw) for index in range(BATCH)]
    numbers = random_numbers(groups, draw)
    expected = reference(groups, numbers)
    assert abs(expected) > 1e-6 and abs(ours(groups, numbers) - expected) <= 1e-12

    samples, _ = sample_groups(groups, SETTINGS)  # what the learner is given: float32
    found = {group.question_id: group for group in samples}
    for group in groups:
        outcome = standing([member.reward for member in group.members])
        retrieved = standing([reward_of_retrievals(member) for member in group.members])
        for i, sample in enumerate(found[group.question.id].samples if group.members else ()):
            member = group.members[i]
            assert np.flatnonzero(sample.loss_mask).tolist() == trained(member)
            np.testing.assert_allclose(sample.advantages, (1 + 0.2 * retrieved[i]) * outcome[i], rtol=2e-5, atol=1e-6)
            assert sample.weight == pytest.approx(1 / (len(trained(member)) * len(group.members) * BATCH))
