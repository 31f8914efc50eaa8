"""From rewards of steps to advantages of tokens, over whole groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_learner import trajectory, trajectory_groups

from rapo_rllib.batching.credit import grouped_steps, step_states, token_advantages
from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.objective.advantages import combined_advantages, outcome_advantages, retrieval_advantages
from rapo_rllib.objective.retrieval_reward import trajectory_retrieval_reward
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import REPLAY, Question, Trajectory, TrajectoryGroup

PLAIN = ObjectiveSettings(normalize_std=False, retrieval_advantage_weight=0.0)
PARTS = [("policy", 2), ("observation", 1), ("policy", 1)]


def paid(rewards: list[float], seed: int = 0) -> Trajectory:
    """Steps of two tokens with one of observation between them, and what each was paid."""
    parts = [part for _ in rewards for part in PARTS[:2]][:-1]
    made = trajectory("q", [1, 2], parts, sum(rewards), seed)
    for step, reward in zip(made.steps, rewards, strict=True):
        step.reward = reward
    return made


def group_of(*members: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(Question("q", ""), list(members))


def test_what_the_end_paid_for_earlier_steps_is_theirs() -> None:
    made = paid([0.5, 1.0])
    made.earlier = {0: 0.25}
    assert made.step_rewards == [0.75, 0.75] and made.reward == 1.5
    made.earlier = {1: 0.25}  # the last step has what is left in any case
    assert made.step_rewards == [0.5, 1.0]
    assert Trajectory("q", [1]).step_rewards == []
    fork = made.fork(1)
    fork.earlier[0] = 9.0
    assert made.earlier == {1: 0.25}


@pytest.mark.parametrize("branches", ["soft", "hard"])
def test_the_papers_advantages_are_the_default_to_the_last_bit(branches: str) -> None:
    settings = ObjectiveSettings(branch_advantage=branches)
    for group in trajectory_groups(6, 4):
        group.trajectories[0].steps[0].reward = 0.75  # what single steps earned is nothing to it
        members = group.members
        outcome = outcome_advantages([t.reward for t in members])
        whole = combined_advantages(
            outcome, retrieval_advantages([trajectory_retrieval_reward(member) for member in members]), 0.2
        ).tolist()
        for found, own, member in zip(token_advantages(group, settings), whole, members, strict=True):
            assert found.tobytes() == np.full(len(member.token_ids), own, dtype=np.float32).tobytes()


def test_a_fork_is_a_state_that_its_branches_are_compared_in() -> None:
    """Both wrote step 1 behind the very same tokens; a third one came to step 1 by another step 0."""
    origin, other = paid([0.0, 1.0]), paid([0.0, 0.0], 1)
    branch = origin.fork(1)
    branch.steps, branch.token_ids = branch.steps[:1], branch.token_ids[:3]
    branch.kinds, branch.logprobs, branch.entropies = branch.kinds[:3], branch.logprobs[:3], branch.entropies[:3]
    branch.append_policy([9, 9], [-1.0] * 2, [1.0] * 2)
    branch.reward = 0.0
    group = group_of(origin, branch, other)
    settings = replace(PLAIN, credit="gigpo")
    first, second, third = token_advantages(group, settings)
    # 2/3, -1/3, -1/3. Step 0: all from the prompt, the same again. Step 1: 1 and 0 from one state, the third alone
    assert first[[0, 3]].tolist() == pytest.approx([4 / 3, 2 / 3 + 0.5])
    assert second[[0, 3]].tolist() == pytest.approx([-2 / 3, -1 / 3 - 0.5])
    assert third[[0, 3]].tolist() == pytest.approx([-2 / 3, -1 / 3])
    assert grouped_steps(group, settings) == 5 and grouped_steps(group, PLAIN) == 0
    assert sample_groups([group], settings)[1]["grouped_step_share"] == 5 / 6


def test_an_environments_own_key_of_a_state_comes_before_the_history() -> None:
    first, second = paid([0.0, 1.0]), paid([0.0, 0.0], 1)
    assert step_states(first)[0] == step_states(second)[0] and step_states(first)[1] != step_states(second)[1]
    first.steps[1].state = second.steps[1].state = "at the door"
    assert step_states(first)[1] == step_states(second)[1]
    elsewhere = replace(first, prompt_ids=[7])
    assert step_states(elsewhere)[0] != step_states(first)[0]


def test_equal_outcomes_of_unequal_steps_have_signal_where_steps_count() -> None:
    group = group_of(paid([1.0, 0.0]), paid([0.0, 1.0], 1))
    for one in group.members:
        one.steps[1].state = "at the door"  # from there one earned 1, the other nothing
    assert sample_groups([group], PLAIN)[0] == []
    assert sample_groups([group], replace(PLAIN, credit="gigpo"))[0]
    # by length alone there is none: both began from the prompt and earned the same
    same = group_of(paid([0.0, 1.0]), paid([1.0], 1))
    assert sample_groups([same], replace(PLAIN, credit="gigpo"))[0] == []


def test_a_replayed_trajectory_without_steps_is_one_step() -> None:
    replayed = paid([0.0, 1.0])
    replayed.steps, replayed.origin = [], REPLAY
    group = group_of(paid([0.0, 0.0], 1))
    group.off_policy = [replayed]
    own, others = token_advantages(group, replace(PLAIN, credit="gigpo"))
    assert len(set(others.tolist())) == 1 and others[0] > 0 > own[0]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        # lengths 5 and 2 of 8, the last 4 punished: -1/4. All that was earned, 7/4 and 0, and the same again of step 0, which
        # both began from the prompt
        ({"credit": "gigpo"}, [[0.875 + 0.875, 0.875], [-0.875 - 0.875]]),
        ({}, [[0.875, 0.875], [-0.875]]),
    ],
)
def test_a_long_response_is_punished_whatever_the_credit(keys: dict, expected: list[list[float]]) -> None:
    group = group_of(paid([1.0, 1.0]), paid([0.0], 1))
    settings = replace(PLAIN, max_response_tokens=8, overlong_buffer_share=0.5, **keys)
    for found, member, wanted in zip(token_advantages(group, settings), group.members, expected, strict=True):
        assert [found[step.start] for step in member.steps] == pytest.approx(wanted)
