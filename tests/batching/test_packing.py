"""Rows with shared prompts hold what the docstring's example says, lose nothing, and compute what padding computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCABULARY, random_groups, sample, tiny_model

from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.samples import SampleGroup
from rapo_rllib.rl_module import score_row
from rapo_rllib.settings import ModelSettings

FLOAT64 = ModelSettings(dtype="float64", autocast_dtype=None, logits_chunk_size=5)


def test_docstring_example() -> None:
    group = SampleGroup(np.array([1, 2]), (sample([5, 6, 7], [1, 0, 1], 0.5, 0.25), sample([8, 9], [1, 1], -1.0, 0.125)))
    (row,) = pack_rows([group], max_tokens=100)
    assert row.token_ids.tolist() == [1, 2, 5, 6, 8]
    assert row.position_ids.tolist() == [0, 1, 2, 3, 2]
    assert row.segment_ids.tolist() == [0, 0, 1, 1, 2]
    assert row.parent_ids.tolist() == [-1, -1, 0, 0, 0]
    assert row.mask().int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]
    assert row.target_ids.tolist() == [5, 7, 8, 9]
    assert row.loss_positions.tolist() == [1, 3, 1, 4]
    assert row.rollout_logprobs.tolist() == [-1, -3, -1, -2]
    assert row.advantages.tolist() == [0.5, 0.5, -1, -1]
    assert row.weights.tolist() == [0.25, 0.25, 0.125, 0.125]
    assert row.trajectory_ids.tolist() == [0, 0, 1, 1]
    # a window of 2 positions: token 6 (position 3) no longer sees the prompt (positions 0 and 1), token 8 (2) sees 2 (1)
    assert row.mask(window=2)[3].int().tolist() == [0, 0, 1, 1, 0] and row.mask(window=2)[4].int().tolist() == [0, 1, 0, 0, 1]


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
    prompts = (row.parent_ids == -1).nonzero().flatten()
    second = int(prompts[row.position_ids[prompts] == 0][1])
    assert not row.mask()[second:, :second].any()


def test_no_loss_tokens_no_row_and_bad_budget() -> None:
    assert pack_rows([SampleGroup(np.array([1, 2]), (sample([5, 6], [0, 0]),))], 10) == []
    assert pack_rows([], 10) == []
    with pytest.raises(ValueError, match="max_tokens_per_micro_batch must be positive, got 0"):
        pack_rows([], 0)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.lists(st.integers(1, 20), min_size=1, max_size=5)), min_size=1, max_size=5),
    st.integers(1, 100),
    st.integers(0, 1000),
)
def test_no_loss_token_is_lost_or_doubled(lengths: list[tuple[int, list[int]]], budget: int, seed: int) -> None:
    groups = random_groups(lengths, seed)
    rows = pack_rows(groups, budget)
    packed = [pair for row in rows for pair in zip(row.target_ids.tolist(), row.advantages.tolist(), strict=True)]
    expected = [
        (int(token), float(np.float32(s.advantage)))
        for group in groups
        for s in group.samples
        for token in s.token_ids[s.loss_mask]
    ]
    assert sorted(packed) == sorted(expected)


def unshared_logprobs(model: torch.nn.Module, groups: list[SampleGroup]) -> dict[tuple[int, int], torch.Tensor]:
    """(group, sample) -> logprobs and entropies ``[n, 2]`` of its loss tokens, from a padded batch of prompt + response."""
    paths = [
        (g, s, torch.tensor([*group.prompt_ids, *x.token_ids]))
        for g, group in enumerate(groups)
        for s, x in enumerate(group.samples)
    ]
    ids = torch.nn.utils.rnn.pad_sequence([path for _, _, path in paths], batch_first=True, padding_value=2)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(path)) for _, _, path in paths], batch_first=True)
    log_p = torch.log_softmax(model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits / 0.7, -1)
    result = {}
    for index, (g, s, path) in enumerate(paths):
        start = len(groups[g].prompt_ids)
        where = start + torch.from_numpy(np.flatnonzero(groups[g].samples[s].loss_mask))
        distribution = log_p[index, where - 1]
        entropies = -(distribution.exp() * distribution).sum(-1)
        result[g, s] = torch.stack([distribution[torch.arange(len(where)), path[where]], entropies], 1)
    return result


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma", "gemma2"])
@pytest.mark.parametrize("budget", [10_000, 30])
def test_shared_logprobs_entropies_and_gradients_equal_the_unshared(kind: str, budget: int) -> None:
    model = tiny_model(kind)
    groups = random_groups([(7, [5, 9, 1]), (4, [6, 6]), (1, [3])])
    groups = [
        SampleGroup(g.prompt_ids, tuple(sample(s.token_ids, s.loss_mask, 10 * i + j + 1.0) for j, s in enumerate(g.samples)))
        for i, g in enumerate(groups)
    ]  # the advantage names the sample
    expected = unshared_logprobs(model, groups)
    coefficients = {key: torch.randn(len(value), dtype=torch.float64) for key, value in expected.items()}
    sum((coefficients[key] * value[:, 0]).sum() for key, value in expected.items()).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    model.zero_grad()
    rows = pack_rows(groups, budget)
    assert len(rows) == (1 if budget > 30 else 2)
    for row in rows:
        logprobs, entropies = score_row(model, row, FLOAT64, temperature=0.7)
        loss = 0.0
        for name in row.advantages.unique().tolist():
            key, chosen = (int(name - 1) // 10, int(name - 1) % 10), row.advantages == name
            torch.testing.assert_close(logprobs[chosen], expected[key][:, 0], rtol=0, atol=1e-12)
            torch.testing.assert_close(entropies[chosen], expected[key][:, 1].detach(), rtol=0, atol=1e-12)
            loss = loss + (coefficients[key] * logprobs[chosen]).sum()
        loss.backward()
    for name, parameter in model.named_parameters():
        assert gradients[name].abs().max() > 1e-6, name
        # the models' norms compute in float32 whatever the weights are, so summing in another order shows at 1e-7
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-5, atol=1e-6)


def test_tokens_outside_the_loss_are_no_targets() -> None:
    """Changing an observation that nothing follows changes no logprob: it is neither input nor target."""
    model = tiny_model()
    rows = [
        pack_rows([SampleGroup(np.array([4, 5]), (sample([6, 7, last], [1, 1, 0]),))], 100)[0] for last in (8, VOCABULARY - 1)
    ]
    first, second = (score_row(model, row, FLOAT64, 1.0)[0] for row in rows)
    assert torch.equal(first, second) and rows[0].num_loss_tokens == 2
