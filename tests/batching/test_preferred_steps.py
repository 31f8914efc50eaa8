"""From preferred steps and rewards of comparisons to samples: rows, masks, pairs, weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from tiny_learner import trajectory

from rapo_rllib.batching.credit import token_advantages
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import PreferredStep, Question, TrajectoryGroup

IMPLICIT = ObjectiveSettings(step_comparison="implicit")
PARTS = [("policy", 2), ("observation", 1), ("policy", 1)]


def group(name: str = "q", reward: float = 0.0) -> TrajectoryGroup:
    first, second = (trajectory(name, [1, 2], PARTS, value, seed) for seed, value in enumerate((0.0, reward)))
    first.preferred = [PreferredStep(0, (40, 41, 42)), PreferredStep(1, (43, 44))]
    second.preferred = [PreferredStep(1, (45,))]
    return TrajectoryGroup(Question(name, ""), [first, second])


def test_rows_masks_and_pairs_of_preferred_steps() -> None:
    one = group()
    (found,), statistics = sample_groups([one], IMPLICIT)
    own, first, second, other, third = found.samples
    tokens = one.trajectories[0].token_ids
    assert statistics.num_preferences == found.num_pairs == 3
    assert own.pairs is not None and own.pairs.tolist() == [-1, -1, 0, -2]
    assert (first.token_ids.tolist(), first.loss_mask.tolist()) == ([40, 41, 42], [True] * 3)
    assert second.token_ids.tolist() == [*tokens[:3], 43, 44]  # behind the call and its result
    assert second.loss_mask.tolist() == [False] * 3 + [True] * 2
    assert [sample.pairs.tolist() for sample in (first, second)] == [[1, 1, 1], [0, 0, 0, 2, 2]]
    assert other.pairs.tolist() == [0, 0, 0, -3] and third.pairs.tolist() == [0, 0, 0, 3]
    # both steps of a pair weigh alike: a share of the mean over the trajectory's own three tokens, two trajectories, a group
    assert {sample.weight for sample in found.samples} == {1 / 6}
    assert not any(sample.advantages.any() or sample.off_policy for sample in (first, second, third))


def test_without_signal_the_preference_alone_keeps_a_group() -> None:
    one = group()
    assert sample_groups([one], IMPLICIT)[0]
    for member in one.trajectories:
        member.preferred = []
    found, statistics = sample_groups([one], IMPLICIT)
    assert not found and statistics.num_groups_without_signal == 1


def test_a_trajectory_that_is_left_out_has_no_pairs() -> None:
    one = group(reward=1.0)
    one.trajectories[0].end = "length"
    (found,), statistics = sample_groups([one], replace(IMPLICIT, mask_truncated=True))
    assert statistics.num_preferences == found.num_pairs == 1
    assert [sample.pairs.tolist() for sample in found.samples] == [[0, 0, 0, -1], [0, 0, 0, 1]]


def test_pairs_are_numbered_over_groups_and_rows() -> None:
    groups, _ = sample_groups([group("a"), group("b")], IMPLICIT)
    for budget in (8, 200):
        rows = pack_rows(groups, budget)
        assert (len(rows) > 1) == (budget == 8)
        pairs = torch.cat([row.pairs for row in rows])
        tokens = {p: int((pairs == p).sum()) for p in range(-6, 7) if p}
        assert tokens == {-1: 2, -2: 1, -3: 1, -4: 2, -5: 1, -6: 1, 1: 3, 2: 2, 3: 1, 4: 3, 5: 2, 6: 1}
    (row,) = pack_rows([replace(groups[0], samples=groups[0].samples[:1])], 200)
    assert row.pairs.tolist() == [-1, -1, -2]


def test_what_the_discriminator_paid_is_credited_to_its_step_alone_and_is_in_no_reward() -> None:
    one = group()
    first, second = one.trajectories
    first.comparison_rewards, second.comparison_rewards = [-1.0, 0.0], [0.0, -3.0]
    settings = ObjectiveSettings(credit="step", normalize_std=False, retrieval_advantage_weight=0.0)
    # returns: -1 and -3 at step 0, 0 and -3 at step 1; means -2 and -1.5
    expected = [[1.0, 1.0, 1.0, 1.5], [-1.0, -1.0, -1.0, -1.5]]
    np.testing.assert_allclose(token_advantages(one, settings), expected)
    assert [t.reward for t in one.trajectories] == [0.0, 0.0] and first.step_rewards == [0.0, 0.0]


def test_learners_have_whole_pairs() -> None:
    groups = [group(name) for name in "abc"]
    whole = TrainingBatch.from_groups(groups, IMPLICIT)
    for share, _ in whole.shard(2):
        rows = pack_rows(share.groups, 8)
        pairs = torch.cat([row.pairs for row in rows]).unique().tolist()
        assert pairs and sorted(pairs) == sorted(-pair for pair in pairs)
