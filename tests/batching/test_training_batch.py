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

from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.samples import Sample
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Question, TrajectoryGroup

PLAIN = ObjectiveSettings(advantage_epsilon=1e-12)


def one_advantage(sample: Sample) -> float:
    """The advantage that all tokens of a sample have."""
    (value,) = set(sample.advantages.tolist())
    return value


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
    assert [one_advantage(s) for s in samples.samples] == pytest.approx(
        [-1 / math.sqrt(3), -1 / math.sqrt(3), 2 / math.sqrt(3)]
    )
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
    assert [one_advantage(first), one_advantage(second)] == pytest.approx([(1 + 0.2 * half) * half, -(1 - 0.2 * half) * half])


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        # token entropies (2, 2) before, (1,) after; the on-policy trajectory has Z = 0
        ({"retrieval_quality": "rise"}, -1),  # Z = -2 tanh 1
        ({"retrieval_quality": "none"}, 1),  # Z = 2
        ({"step_entropy_reduction": "sum", "retrieval_timing": "low_entropy"}, 1),  # Z = tanh(2 * 3 / 4) / 4
        ({"retrieval_advantage_weight": 0.0}, 0),
    ],
)
def test_the_retrieval_reward_is_the_settings(changes: dict, sign: int) -> None:
    parts = [("policy", 2), ("observation", 3), ("retrieved", 4), ("policy", 1)]
    hybrid = trajectory("q", [1, 2], parts, reward=1.0, seed=0, hybrid=True)
    hybrid.entropies = [2.0, 2.0] + [0.0] * 7 + [1.0]
    plain = trajectory("q", [1, 2], [("policy", 3)], reward=0.0, seed=1)
    both = TrajectoryGroup(Question("q", ""), [hybrid, plain])
    (samples,) = TrainingBatch.from_groups([both], replace(PLAIN, **changes)).groups
    half = 1 / math.sqrt(2)
    assert one_advantage(samples.samples[0]) == pytest.approx((1 + 0.2 * sign * half) * half)


def test_groups_without_signal_are_counted_and_left_out_but_stay_in_the_mean() -> None:
    groups = [group([1, 1], [2, 2]), group([0, 1], [2, 2])]
    data = TrainingBatch.from_groups(groups, PLAIN)
    assert len(data.groups) == 1 and data.statistics["num_groups_without_signal"] == 1
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
    assert [one_advantage(s) for s in samples.samples] == pytest.approx([-2 / math.sqrt(3), 1 / math.sqrt(3)])
    assert samples.samples[0].weight == pytest.approx(1 / (2 * 3 * 1))
    assert (batch.statistics["num_failed_trajectories"], batch.statistics["truncated_share"]) == (1, 1 / 4)
    for member in data.trajectories:
        member.end = "error"
    assert TrainingBatch.from_groups([data], PLAIN).statistics["num_groups_without_signal"] == 1


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
    # 1000 * 4 + 8000 * (4 token + 1 mask + 4 logprob + 4 advantage) = 108000 bytes of arrays
    assert len(pickle.dumps(data)) < 112_000
    assert np.array_equal(pickle.loads(pickle.dumps(data)).groups[0].prompt_ids, data.groups[0].prompt_ids)


def test_hard_attribution_gives_shared_tokens_the_mean_of_their_branches() -> None:
    # rewards 1, 0: advantages +-1/sqrt 2 (unbiased std); the second took over the first 2 tokens of the first
    pair = group([1, 0], [3, 4])
    first, second = pair.trajectories
    first.segments, second.segments = [(0, 0)], [(0, 0), (2, 1)]
    second.token_ids[:2] = first.token_ids[:2]
    half = 1 / math.sqrt(2)
    (soft,) = TrainingBatch.from_groups([pair], PLAIN).groups
    assert [one_advantage(s) for s in soft.samples] == pytest.approx([half, -half])
    (hard,) = TrainingBatch.from_groups([pair], replace(PLAIN, branch_advantage="hard")).groups
    assert hard.samples[0].advantages.tolist() == pytest.approx([0, 0, half])
    assert hard.samples[1].advantages.tolist() == pytest.approx([0, 0, -half, -half])
    packed = pack_rows([hard], 100)[0]
    assert sorted(packed.advantages.tolist()) == pytest.approx([-half, -half, 0, 0, 0, 0, half])


def test_without_branches_hard_is_soft() -> None:
    groups = trajectory_groups(3)
    soft = TrainingBatch.from_groups(groups, PLAIN).groups
    hard = TrainingBatch.from_groups(groups, replace(PLAIN, branch_advantage="hard")).groups
    for a, b in zip(soft, hard, strict=True):
        assert [s.advantages.tolist() for s in a.samples] == [s.advantages.tolist() for s in b.samples]


def test_constant_weights_have_the_budget_in_place_of_the_length() -> None:
    # 1 / (20 tokens of budget * 3 trajectories * 1 group)
    settings = replace(PLAIN, loss_aggregation="constant", max_response_tokens=20)
    (samples,) = TrainingBatch.from_groups([group([0, 0, 3], [2, 1, 4])], settings).groups
    assert [s.weight for s in samples.samples] == pytest.approx([1 / 60] * 3)


def test_long_responses_are_punished_before_advantages() -> None:
    # budget 10, the last 4 punished: lengths 6, 8, 10 lose 0, 1/2, 1; rewards 1, 1, 0 become 1, 1/2, -1
    settings = replace(PLAIN, normalize_std=False, max_response_tokens=10, overlong_buffer_share=0.4)
    batch = TrainingBatch.from_groups([group([1, 1, 0], [6, 8, 10])], settings)
    (samples,) = batch.groups
    assert [one_advantage(s) for s in samples.samples] == pytest.approx([5 / 6, 1 / 3, -7 / 6])
    assert batch.statistics["overlong_share"] == 2 / 3 and batch.statistics["overlong_punishment"] == pytest.approx(-0.5)


def test_length_alone_is_no_signal() -> None:
    """In a group that all failed, the punishment would be normalised to full-size advantages."""
    settings = replace(PLAIN, max_response_tokens=10, overlong_buffer_share=0.4)
    batch = TrainingBatch.from_groups([group([0, 0], [6, 10])], settings)
    assert batch.groups == [] and batch.statistics["num_groups_without_signal"] == 1
    for credit in ("trajectory", "gigpo"):  # the KL term keeps the group
        kept = TrainingBatch.from_groups([group([0, 0], [6, 10])], replace(settings, kl_coeff=0.1, credit=credit)).groups
        assert [one_advantage(s) for s in kept[0].samples] == [0, 0]


@pytest.mark.parametrize(("aggregation", "weights"), [("trajectory", [1 / 6, 1 / 3]), ("token", [1 / 3, 1 / 3])])
def test_truncated_responses_can_be_left_out_of_the_loss(aggregation: str, weights: list[float]) -> None:
    """They stay in the baseline of the group, and in G; their tokens are in no sum."""
    data = group([0, 0, 3], [2, 1, 4])
    data.trajectories[2].end = "length"
    settings = replace(PLAIN, loss_aggregation=aggregation, mask_truncated=True)
    batch = TrainingBatch.from_groups([data], settings)
    (samples,) = batch.groups
    assert [one_advantage(s) for s in samples.samples] == pytest.approx([-1 / math.sqrt(3)] * 2)
    assert [s.weight for s in samples.samples] == pytest.approx(weights)
    assert batch.statistics["truncated_share"] == batch.statistics["masked_share"] == 1 / 3


def test_a_group_without_a_token_in_the_loss_has_no_minibatch() -> None:
    """Two of three groups train: so many minibatches, and weights of a share of three groups times two."""
    groups = [group([0, 3], [2, 4], name=name) for name in "abc"]
    for member in groups[1].trajectories:
        member.end = "length"
    for kl_coeff in (0.0, 0.1):
        masking = replace(PLAIN, mask_truncated=True, kl_coeff=kl_coeff)
        batch = TrainingBatch.from_groups(groups, masking, num_minibatches=3)
        assert [[one.question_id for one in minibatch] for minibatch in batch.minibatches] == [["a"], ["c"]]
        assert [s.weight for s in batch.groups[0].samples] == pytest.approx([2 / (2 * 2 * 3), 2 / (4 * 2 * 3)])
        assert batch.statistics["masked_share"] == 2 / 6
    assert TrainingBatch.from_groups(groups[1:2], replace(PLAIN, mask_truncated=True)).minibatches == ()


def test_a_group_of_empty_responses_has_no_minibatch() -> None:
    groups = [group([0, 3], [2, 4], name="a"), TrajectoryGroup(Question("b", ""), [])]
    groups[1].trajectories += [trajectory("b", [1, 2], [("observation", 3)], float(i), seed=i) for i in range(2)]
    assert [one.question_id for one in TrainingBatch.from_groups(groups, PLAIN, 2).groups] == ["a"]
