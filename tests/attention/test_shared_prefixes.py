"""Rows with shared prefixes compute what every prompt + response computes alone: logprobs, entropies, loss, all gradients."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from tiny_models import branched_group, tiny_model
from torch.overrides import TorchFunctionMode

from rapo_rllib.attention.block_attention import TreeBlocks
from rapo_rllib.attention.forward import RowAttention, use_attention
from rapo_rllib.attention.probe import row_attention
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.samples import SampleGroup
from rapo_rllib.learner.rl_module import score_row
from rapo_rllib.settings import ModelSettings

TEMPERATURE = 0.7
SETTINGS = ModelSettings(dtype="float64", autocast_dtype=None, logits_chunk_size=5)
BRANCHES = [  # two levels of forks; a fork of one token; a response of one token; a response that another one continues
    [("a", 9), ("b", 4), ("c", 5)],
    [("a", 9), ("b", 4), ("d", 1)],
    [("a", 9), ("e", 3)],
    [("f", 1)],
    [("g", 1), ("h", 7)],
    [("g", 1), ("i", 6)],
    [("a", 9), ("b", 4)],
]
TWINS = [[("a", 6)], [("a", 6)], []]  # the same tokens twice, and a response of no tokens


def groups() -> list[SampleGroup]:
    """Two questions behind one system prompt and a third behind none; the weight of a sample is its number."""
    made = [
        branched_group([3, 4, 5, 6, 7, 8], BRANCHES, seed=1),
        branched_group([3, 4, 5, 9], TWINS, seed=2),
        branched_group([30], [[("a", 12)], [("b", 3)]], seed=3),
    ]
    numbers = iter(range(1, 100))
    return [
        SampleGroup(g.prompt_ids, tuple(replace(s, weight=float(next(numbers))) for s in g.samples if len(s.token_ids)))
        for g in made
    ]


class KeepFloat64(TorchFunctionMode):
    """Norms, softmax and rotary embeddings of transformers round to float32, whatever the weights are; in here they do not."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if isinstance(args[0] if args else None, torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float or (func is torch.Tensor.to and args[1:] == (torch.float32,)):
                return args[0]
            if kwargs.get("dtype") == torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@cache
def alone(kind: str) -> tuple[dict[float, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
    """One sequence at a time: weight of a sample -> logprobs and entropies ``[n, 2]`` of its loss tokens; gradients; loss."""
    model, scores, total = tiny_model(kind), {}, 0.0
    model.set_attn_implementation("eager")  # the one that leaves nothing out
    for group in groups():
        for sample in group.samples:
            path = torch.tensor([*group.prompt_ids, *sample.token_ids])
            log_p = torch.log_softmax(model(input_ids=path[None], use_cache=False).logits[0] / TEMPERATURE, -1)
            where = len(group.prompt_ids) + np.flatnonzero(sample.loss_mask)
            distribution = log_p[where - 1]
            entropies = -(distribution.exp() * distribution).sum(-1)
            scores[sample.weight] = torch.stack([distribution[range(len(where)), path[where]], entropies], 1)
            total += sample.weight * (torch.from_numpy(sample.advantages[sample.loss_mask]) * scores[sample.weight][:, 0]).sum()
    total.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {weight: score.detach() for weight, score in scores.items()}, gradients, total.detach()


KINDS = ["llama", "qwen2", "gemma", "gemma2", "gemma3_text", "mistral"]
CASES = [
    *((kind, RowAttention.BLOCKS, 10_000, False) for kind in KINDS),
    *((kind, RowAttention.BLOCKS, 26, True) for kind in KINDS),  # several rows, gradient checkpointing
    *((kind, RowAttention.MASK, 10_000, kind == "gemma") for kind in ("llama", "gemma", "gemma3_text")),
    *((kind, RowAttention.UNSHARED, 10_000, kind == "qwen2") for kind in ("qwen2", "gemma3_text")),
]


@pytest.mark.parametrize(("kind", "attention", "budget", "checkpointing"), CASES)
def test_equal_to_every_trajectory_alone(
    kind: str, attention: RowAttention, budget: int, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rapo_rllib.attention.block_attention.MIN_BLOCK", 4)  # several blocks, of one segment and of more
    model, loss, seen = tiny_model(kind), 0.0, []
    use_attention(model, attention)
    if checkpointing:
        exact = {"context_fn": lambda: (nullcontext(), KeepFloat64())}  # modes do not reach the second forward by themselves
        model.gradient_checkpointing_enable({"use_reentrant": False, **exact})
        model.train()
    rows = pack_rows(groups(), budget, share=attention is not RowAttention.UNSHARED)
    assert len(rows) == 1 if budget > 100 else len(rows) > 1
    with KeepFloat64():
        expected, gradients, expected_loss = alone(kind)
        for row in rows:
            logprobs, entropies = score_row(model, row, SETTINGS, TEMPERATURE, attention)
            for weight in row.weights.unique().tolist():
                chosen = row.weights == weight
                found = torch.stack([logprobs[chosen].detach(), entropies[chosen]], 1)
                torch.testing.assert_close(found, expected[weight], rtol=0, atol=1e-11)
                seen.append(weight)
            row_loss = (row.weights.double() * row.advantages.double() * logprobs).sum()
            row_loss.backward()
            loss += row_loss.detach()
    assert sorted(seen) == sorted(expected)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=1e-12)
    for name, parameter in model.named_parameters():
        assert gradients[name].abs().max() > 1e-6, name
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-9, atol=1e-9)


def test_a_prefix_is_computed_once() -> None:
    (row,) = pack_rows(groups(), 10_000)
    prefixes = set()
    for group in groups():
        for sample in group.samples:
            path = (*group.prompt_ids.tolist(), *sample.token_ids.tolist())
            last = len(group.prompt_ids) + int(np.flatnonzero(sample.loss_mask)[-1])
            prefixes |= {path[: length + 1] for length in range(last)}
    assert row.num_tokens == len(prefixes)
    pairs = set(zip(row.scored_positions.tolist(), row.scored_ids.tolist(), strict=True))
    assert len(pairs) == len(row.scored_ids) < row.num_loss_tokens


@pytest.mark.parametrize("window", [None, 3])
def test_masks_of_blocks_are_the_dense_mask(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rapo_rllib.attention.block_attention.MIN_BLOCK", 3)
    monkeypatch.setattr("rapo_rllib.attention.block_attention.MAX_BLOCK", 7)
    (row,) = pack_rows(groups(), 10_000)
    tree, dense = TreeBlocks(row), torch.zeros(row.num_tokens, row.num_tokens, dtype=torch.bool)
    keys = torch.arange(row.num_tokens).split(tree.key_sizes)
    queries = torch.arange(row.num_tokens).split(tree.query_sizes)
    for own, pieces, mask in zip(queries, tree.block_pieces, tree.masks(window, torch.float32), strict=True):
        dense[own[:, None], torch.cat([keys[piece] for piece in pieces])] = mask == 0
    assert torch.equal(dense, row.mask(window)) and max(tree.query_sizes) <= 7 and len(tree.query_sizes) > 5


def test_blocks_compute_far_fewer_scores_than_a_dense_mask() -> None:
    group = branched_group(range(3, 53), [[(f"own{index}", 150)] for index in range(8)])
    (row,) = pack_rows([group], 10_000)
    computed = sum(mask.numel() for mask in TreeBlocks(row).masks(None, torch.float32))
    assert computed < row.num_tokens**2 / 5


def test_models_are_switched_to_the_attention_that_their_device_computes_fastest() -> None:
    for kind in KINDS:
        model = tiny_model(kind, torch.float32)
        assert row_attention(model) is RowAttention.BLOCKS and model.config._attn_implementation == "tree"
        sequence = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])  # ordinary sequences still go through, with windows and caps
        found = model(sequence, use_cache=False).logits
        model.set_attn_implementation("eager")
        torch.testing.assert_close(found, model(sequence, use_cache=False).logits, rtol=1e-4, atol=1e-4)
