"""Advantages and weights are those of the whole batch, whoever trains which group."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_learner import trajectory, trajectory_groups
from tiny_models import random_groups

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Question, TrajectoryGroup

PLAIN = ObjectiveSettings(advantage_epsilon=1e-12)


def group(rewards: list[float], lengths: list[int], prompt: list[int] | None = None, name: str = "q") -> TrajectoryGroup:
    """One trajectory per reward, of one policy step each."""
    members = [
        trajectory(name, prompt or [1, 2], [("policy", n)], r, seed=i)
        for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))
    ]
    return TrajectoryGroup(Question(name, ""), members)


def test_hand_worked_advantages_and_weights() -> None:
    # rewards 0, 0, 3: mean 1, unbiased std sqrt((1 + 1 + 4) / 2) = sqrt 3; nobody retrieved, so A = A_acc
    # trajectory weights 1 / (tokens * 3 trajectories * 1 group): 1/6, 1/3, 1/12
    (samples,) = TrainingBatch.from_groups([group([0, 0, 3], [2, 1, 4])], PLAIN).groups
    assert [s.advantage for s in samples.samples] == pytest.approx([-1 / math.sqrt(3), -1 / math.sqrt(3), 2 / math.sqrt(3)])
    assert [s.weight for s in samples.samples] == pytest.approx([1 / 6, 1 / 3, 1 / 12])
    # token weights 1 / 7 tokens
    (samples,) = TrainingBatch.from_groups([group([0, 0, 3], [2, 1, 4])], replace(PLAIN, loss_aggregation="token")).groups
    assert [s.weight for s in samples.samples] == pytest.approx([1 / 7] * 3)


def test_hybrid_trajectory_has_share_mask_and_retrieval_advantage() -> None:
    parts = [("policy", 2), ("observation", 3), ("retrieved", 4), ("policy", 1)]
    hybrid = trajectory("q", [1, 2], parts, reward=1.0, seed=0, hybrid=True)
    hybrid.entropies = [2.0, 2.0] + [0.0] * 7 + [1.0]
    plain = trajectory("q", [1, 2], [("policy", 3)], reward=0.0, seed=1)
    (samples,) = TrainingBatch.from_groups([TrajectoryGroup(Question("q", ""), [hybrid, plain])], PLAIN).groups
    first, second = samples.samples
    assert first.loss_mask.tolist() == [True] * 2 + [False] * 7 + [True] and first.num_loss_tokens == 3
    assert first.retrieved_share == 0.4 and second.retrieved_share == 0.0
    assert (first.rollout_logprobs[2:9] == 0).all() and (first.rollout_logprobs[[0, 1, 9]] < 0).all()
    # dH = (2 - 1) / 2, Z = 2 tanh 1 > 0 against 0: A_ret = +-1/sqrt 2, A_acc = +-1/sqrt 2, A = (1 + 0.2 A_ret) A_acc
    half = 1 / math.sqrt(2)
    assert [first.advantage, second.advantage] == pytest.approx([(1 + 0.2 * half) * half, -(1 - 0.2 * half) * half])


def test_groups_without_signal_are_counted_and_left_out_but_stay_in_the_mean() -> None:
    groups = [group([1, 1], [2, 2]), group([0, 1], [2, 2])]
    data = TrainingBatch.from_groups(groups, PLAIN)
    assert len(data.groups) == 1 and data.statistics.num_groups == 2 and data.statistics.num_groups_without_signal == 1
    assert data.groups[0].samples[0].weight == pytest.approx(1 / (2 * 2 * 2))
    assert len(TrainingBatch.from_groups(groups, replace(PLAIN, kl_coeff=0.1)).groups) == 2  # the KL term has a gradient
    assert TrainingBatch.from_groups(groups[:1], PLAIN).minibatches == ()
    assert TrainingBatch.from_groups([], PLAIN).minibatches == ()


def test_failed_trajectories_are_in_no_statistic_and_empty_ones_in_no_loss() -> None:
    data = group([0, 1, 50], [2, 2, 2])
    data.trajectories[2].end = "error"
    data.trajectories[1].end = "length"
    empty = trajectory("q", [1, 2], [], 1.0, seed=9)
    data.trajectories.append(empty)
    batch = TrainingBatch.from_groups([data], PLAIN)
    (samples,) = batch.groups
    # rewards 0, 1, 1 (empty): mean 2/3, std sqrt(1/3) -> -2/sqrt 3, 1/sqrt 3; the empty one has no sample
    assert [s.advantage for s in samples.samples] == pytest.approx([-2 / math.sqrt(3), 1 / math.sqrt(3)])
    assert samples.samples[0].weight == pytest.approx(1 / (2 * 3 * 1))
    assert (batch.statistics.num_failed_trajectories, batch.statistics.num_truncated_trajectories) == (1, 1)
    for member in data.trajectories:
        member.end = "error"
    assert TrainingBatch.from_groups([data], PLAIN).statistics.num_groups_without_signal == 1


def test_prompts_of_a_group_must_agree() -> None:
    data = group([0, 1], [2, 2])
    data.trajectories[1].prompt_ids = [1, 3]
    with pytest.raises(ValueError, match="the trajectories of question 'q' have different prompts"):
        TrainingBatch.from_groups([data], PLAIN)


def test_minibatches_scale_weights_and_never_outnumber_groups() -> None:
    groups = trajectory_groups(3)
    whole, halves = (TrainingBatch.from_groups(groups, PLAIN, n) for n in (1, 2))
    assert [len(m) for m in halves.minibatches] == [2, 1]
    assert halves.minibatches[0][0].samples[0].weight == pytest.approx(2 * whole.minibatches[0][0].samples[0].weight)
    assert len(TrainingBatch.from_groups(groups, PLAIN, 10).minibatches) == 3
    with pytest.raises(ValueError, match="num_minibatches must be positive, got 0"):
        TrainingBatch.from_groups(groups, PLAIN, 0)


def test_docstring_example_of_shards() -> None:
    groups = random_groups([(900, [1]), (500, [1]), (400, [1]), (100, [1])])
    data = TrainingBatch((tuple(groups[::2]), tuple(groups[1::2])))
    shards = [shard for shard, _ in data.shard(2, len_lookback_buffer=None)]
    sizes = [[[g.num_tokens - 1 for g in minibatch] for minibatch in shard.minibatches] for shard in shards]
    assert sizes == [[[900], [500]], [[400], [100]]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=0, max_size=12), st.integers(1, 5), st.integers(1, 4))
def test_shards_hold_every_group_once_and_are_balanced(sizes: list[int], shards: int, minibatches: int) -> None:
    groups = random_groups([(size, [2]) for size in sizes])
    data = TrainingBatch(tuple(tuple(groups[start::minibatches]) for start in range(min(minibatches, len(groups)))))
    parts = [part for part, _ in data.shard(shards)]
    assert len(parts) == shards and {len(part.minibatches) for part in parts} == {len(data.minibatches)}
    assert sorted(id(g) for part in parts for g in part.groups) == sorted(id(g) for g in groups)
    for index, minibatch in enumerate(data.minibatches):
        loads = [sum(g.num_tokens for g in part.minibatches[index]) for part in parts]
        assert max(loads) - min(loads) <= max(g.num_tokens for g in minibatch)


def test_pickles_small() -> None:
    data = TrainingBatch.from_groups([group([0, 1], [4000, 4000], prompt=list(range(1000)))], PLAIN)
    # 1000 * 4 + 8000 * (4 token + 1 mask + 4 logprob) = 76000 bytes of arrays
    assert len(pickle.dumps(data)) < 80_000
    assert np.array_equal(pickle.loads(pickle.dumps(data)).groups[0].prompt_ids, data.groups[0].prompt_ids)
