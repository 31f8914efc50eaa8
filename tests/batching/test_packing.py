"""Packed rows hold what the docstring's example says, share what is equal and lose nothing."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCABULARY, branched_group, random_groups, sample, tiny_model

from rapo_rllib.attention.forward import RowAttention
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.samples import SampleGroup
from rapo_rllib.learner.rl_module import score_row
from rapo_rllib.settings import ModelSettings

FLOAT64 = ModelSettings(dtype="float64", autocast_dtype=None, logits_chunk_size=5)


def test_docstring_example() -> None:
    group = SampleGroup(np.array([1, 2]), (sample([5, 6, 7], [1, 0, 1], 0.5, 0.25), sample([5, 9, 3], [1, 1, 1], -1.0, 0.125)))
    (row,) = pack_rows([group], max_tokens=100)
    assert row.token_ids.tolist() == [1, 2, 5, 6, 9]
    assert row.position_ids.tolist() == [0, 1, 2, 3, 3]
    assert row.subtree_ends.tolist() == [5, 5, 5, 4, 5]
    assert row.mask().int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    assert row.scored_ids.tolist() == [5, 9, 7, 3] and row.scored_positions.tolist() == [1, 2, 3, 4]
    assert row.loss_index.tolist() == [0, 2, 0, 1, 3] and row.target_ids.tolist() == [5, 7, 5, 9, 3]
    assert row.rollout_logprobs.tolist() == [-1, -3, -1, -2, -3]
    assert row.advantages.tolist() == [0.5, 0.5, -1, -1, -1]
    assert row.weights.tolist() == [0.25, 0.25, 0.125, 0.125, 0.125]
    assert row.trajectory_ids.tolist() == [0, 0, 1, 1, 1] and row.off_policy.tolist() == [False] * 5
    # a window of 2 positions: tokens 6 and 9 (position 3) see the shared 5 (2) and themselves only
    assert row.mask(window=2)[3].int().tolist() == [0, 0, 1, 1, 0] and row.mask(window=2)[4].int().tolist() == [0, 0, 1, 0, 1]


def test_unshared_rows_repeat_every_prompt() -> None:
    groups = random_groups([(4, [5, 7]), (3, [2])])
    (row,) = pack_rows(groups, 100, share=False)
    starts = (row.position_ids == 0).nonzero().flatten().tolist()
    assert len(starts) == 3 and row.num_tokens == sum(
        len(g.prompt_ids) + int(np.flatnonzero(s.loss_mask)[-1]) for g in groups for s in g.samples
    )
    for start, stop in zip(starts, [*starts[1:], row.num_tokens], strict=True):
        assert row.subtree_ends[start:stop].unique().tolist() == [stop]


def test_branches_stay_together_when_a_group_is_split() -> None:
    # prompt 4; branches of a (10 + 3 each, the last token no input) and of b (10 + 3 each): 4 + 10 + 2 + 2 = 18 tokens a row
    paths = [[("a", 10), ("a1", 3)], [("b", 10), ("b1", 3)], [("a", 10), ("a2", 3)], [("b", 10), ("b2", 3)]]
    group = branched_group([5, 6, 7, 8], paths)
    rows = pack_rows([group], 20)
    assert [row.num_tokens for row in rows] == [18, 18]
    for row, members in zip(rows, ([0, 2], [1, 3]), strict=True):
        expected = np.concatenate([group.samples[index].token_ids[group.samples[index].loss_mask] for index in members])
        assert row.target_ids.tolist() == expected.tolist()


def test_a_system_prompt_is_shared_between_groups() -> None:
    groups = [branched_group([9, 9, 9, first], [[("x", 4)], [("y", 4)]], seed=first) for first in (11, 12)]
    (row,) = pack_rows(groups, 100)
    assert row.num_tokens == 3 + 2 * (1 + 2 * 3)
    assert (row.token_ids == 9).sum() == 3


def test_group_is_split_when_it_does_not_fit_and_never_cut() -> None:
    # prompt 10; inputs of the responses are one token shorter: 29, 19, 9, 9. Budget 40: [10+29], [10+19+9], [10+9]
    (group,) = random_groups([(10, [30, 20, 10, 10])])
    group = SampleGroup(group.prompt_ids, tuple(sample(s.token_ids, np.ones(len(s.token_ids))) for s in group.samples))
    assert sorted(row.num_tokens for row in pack_rows([group], 40)) == [19, 38, 39]
    # a budget smaller than one response: every response in a row of its own, complete
    rows = pack_rows([group], 5)
    assert sorted(row.num_tokens for row in rows) == [19, 19, 29, 39] and sum(row.num_loss_tokens for row in rows) == 70


def test_small_groups_share_a_row_and_do_not_see_each_other() -> None:
    groups = random_groups([(3, [4]), (2, [3, 3])])
    (row,) = pack_rows(groups, 100)
    second = int((row.position_ids == 0).nonzero().flatten()[1])
    assert not row.mask()[second:, :second].any()


def test_no_loss_tokens_no_row() -> None:
    assert pack_rows([SampleGroup(np.array([1, 2]), (sample([5, 6], [0, 0]),))], 10) == []
    assert pack_rows([], 10) == []


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.lists(st.integers(1, 20), min_size=1, max_size=5)), min_size=1, max_size=5),
    st.integers(1, 100),
    st.integers(0, 1000),
    st.booleans(),
)
def test_no_loss_token_is_lost_or_doubled(lengths: list[tuple[int, list[int]]], budget: int, seed: int, share: bool) -> None:
    groups = random_groups(lengths, seed)
    rows = pack_rows(groups, budget, share)
    packed = [pair for row in rows for pair in zip(row.target_ids.tolist(), row.advantages.tolist(), strict=True)]
    expected = [
        (int(token), float(advantage))
        for group in groups
        for s in group.samples
        for token, advantage in zip(s.token_ids[s.loss_mask], s.advantages[s.loss_mask], strict=True)
    ]
    assert sorted(packed) == sorted(expected)


def test_tokens_outside_the_loss_are_no_targets() -> None:
    """Changing an observation that nothing follows changes no logprob: it is neither input nor target."""
    model = tiny_model()
    rows = [
        pack_rows([SampleGroup(np.array([4, 5]), (sample([6, 7, last], [1, 1, 0]),))], 100)[0] for last in (8, VOCABULARY - 1)
    ]
    first, second = (score_row(model, row, FLOAT64, 1.0, RowAttention.MASK)[0] for row in rows)
    assert torch.equal(first, second) and rows[0].num_loss_tokens == 2


def test_a_group_counts_what_is_shared_once() -> None:
    group = branched_group([5, 6], [[("a", 10), ("b", 3)], [("a", 10), ("c", 4)], [("d", 7)]])
    assert group.num_tokens == 2 + 10 + 3 + 4 + 7
