"""FlexAttention's block masks say what the dense masks say; on the CPU it computes the same, as far as it goes there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import branched_group, random_groups, tiny_model
from torch.nn.attention.flex_attention import flex_attention

from rapo_rllib.attention.flex import BLOCK, RECOMPILE_LIMIT, block_mask, padded_row
from rapo_rllib.attention.forward import RowAttention, hidden_states, use_attention
from rapo_rllib.batching.packing import PackedRow, empty_row, pack_rows

LONG = [[("a", 200), ("b", 150)], [("a", 200), ("c", 90), ("d", 60)], [("a", 200), ("c", 90), ("e", 10)], [("f", 140)]]


def long_row() -> PackedRow:
    """About six blocks: a prompt longer than one, forks at two depths, and a second question."""
    (row,) = pack_rows([branched_group(range(3, 53), LONG), *random_groups([(40, [30, 30])])], 10_000)
    return row


@pytest.mark.parametrize("window", [None, 100])
def test_block_masks_say_what_the_dense_masks_say(window: int | None) -> None:
    row = padded_row(long_row())
    assert row.num_tokens % BLOCK == 0 and row.num_tokens // BLOCK > 4
    dense, mask = row.mask(window), block_mask(row, window)
    index = torch.arange(row.num_tokens)
    assert torch.equal(mask.mask_mod(torch.tensor(0), torch.tensor(0), index[:, None], index), dense)
    blocks = dense.view(-1, BLOCK, row.num_tokens // BLOCK, BLOCK)
    some, every = torch.zeros(blocks.shape[0], blocks.shape[0], dtype=bool), torch.zeros_like(blocks[:, 0, :, 0])
    for found, counts, indices in (
        (some, mask.kv_num_blocks, mask.kv_indices),
        (every, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        for query, (count, keys) in enumerate(zip(counts[0, 0].tolist(), indices[0, 0], strict=True)):
            found[query, keys[:count].long()] = True
    visible = blocks.any(3).any(1)
    assert torch.equal(visible | some | every, some | every)  # nothing that is visible is left out
    assert torch.equal(blocks.all(3).all(1), every) or window is not None
    assert not (every & ~blocks.all(3).all(1)).any()  # what counts as wholly visible is
    assert (some | every).sum() < blocks.shape[0] * (blocks.shape[0] + 1) / 2  # fewer than a causal mask
    if window is None:
        assert torch.equal(visible, some | every)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_to_sdpa_with_the_dense_mask(dtype: torch.dtype) -> None:
    row = padded_row(long_row())
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, row.num_tokens, 16, dtype=dtype) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, row.mask()[None, None])
    torch.testing.assert_close(flex_attention(query, key, value, block_mask=block_mask(row)), expected, rtol=1e-5, atol=1e-5)


HEADS = [("llama", 4), ("llama", 6), ("gemma2", 6), ("gemma3_text", 4)]  # of two keys: groups of two, and of three


@pytest.mark.parametrize(("kind", "heads"), HEADS)
def test_hidden_states_equal_those_of_blocks(kind: str, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # compiled for the CPU, FlexAttention has no float64 and takes a minute to build; as it is, it computes the same
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, training: bool, **options: Any) -> Any:
        keys.add(key.shape[1])
        return flex_attention(query, key, value, **options)

    monkeypatch.setattr("transformers.integrations.flex_attention.compile_friendly_flex_attention", attend)
    row, states, keys = long_row(), {}, set[int]()
    for attention in (RowAttention.BLOCKS, RowAttention.FLEX):
        model = tiny_model(kind, torch.float32, heads=heads).eval()
        use_attention(model, attention)
        with torch.no_grad():
            states[attention] = hidden_states(model, row, attention)
    assert keys == {2}  # none is repeated for the heads of its group
    torch.testing.assert_close(states[RowAttention.FLEX], states[RowAttention.BLOCKS], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_ordinary_sequences_are_causal_padded_on_the_left_and_go_on_from_a_cache(kind: str) -> None:
    """As of callers of the trained module itself."""
    model, ids = tiny_model(kind, torch.float32).eval(), torch.tensor([[0, 3, 4, 5], [6, 7, 8, 9]])
    seen = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=seen).logits
        use_attention(model, RowAttention.FLEX)
        found = model(input_ids=ids, attention_mask=seen).logits
        torch.testing.assert_close(found[seen == 1], expected[seen == 1], rtol=1e-4, atol=1e-4)
        for sizes in ((3, 1), (2, 2)):
            first, second = ids[1:].split(sizes, dim=1)
            found = model(input_ids=second, past_key_values=model(input_ids=first, use_cache=True).past_key_values).logits
            torch.testing.assert_close(found, expected[1:, sizes[0] :], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("tokens", "padded"), [(1, 256), (128, 256), (256, 256), (257, 384)])
def test_rows_have_a_least_length(tokens: int, padded: int) -> None:
    index, zeros = torch.arange(tokens), torch.zeros(tokens, dtype=torch.int64)
    row = replace(empty_row(), token_ids=zeros, position_ids=index, subtree_ends=zeros + tokens)
    longer = padded_row(row)
    assert longer.num_tokens == padded
    index = torch.arange(row.num_tokens, padded)
    visible = longer.mask()[row.num_tokens :]
    assert torch.equal(visible.nonzero()[:, 1], index)  # what is appended sees itself alone
    assert not longer.mask()[: row.num_tokens, row.num_tokens :].any()


def test_flex_may_be_compiled_more_often_than_pytorch_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    use_attention(tiny_model("llama", torch.float32), RowAttention.FLEX)
    assert torch._dynamo.config.recompile_limit == RECOMPILE_LIMIT


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "heads"), HEADS)
def test_gradients_on_cuda_equal_those_of_blocks(kind: str, heads: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    row, gradients = long_row().to("cuda"), {}
    for attention in (RowAttention.BLOCKS, RowAttention.FLEX):
        model = tiny_model(kind, torch.float32, head_dim=16, heads=heads).cuda()
        use_attention(model, attention)
        hidden_states(model, row, attention).square().mean().backward()
        gradients[attention] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    difference = (gradients[RowAttention.FLEX] - gradients[RowAttention.BLOCKS]).norm()
    assert difference < 1e-2 * gradients[RowAttention.BLOCKS].norm()
