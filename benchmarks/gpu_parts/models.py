"""Language models of given shapes with random weights, and packed rows of real prefix trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gpu_parts.machine import SHAPES, Shape
from rapo_rllib.batching.packing import PackedRow, pack_rows
from rapo_rllib.batching.samples import Sample, SampleGroup

GROUP = 16  # trajectories of a question


def model_of(shape: str, dtype: torch.dtype, device: str, kind: str = "qwen2", **changes: Any) -> Any:
    """A causal language model without a cache, in training; ``kind``: transformers' ``model_type``."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = SHAPES[shape]
    own = {
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.hidden // sizes.heads,
        "vocab_size": sizes.vocabulary,
        "tie_word_embeddings": sizes.tied,
    }
    config = AutoConfig.for_model(kind, use_cache=False, **own | changes)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():  # not left to transformers, which leaves memory as it is where a process told it to
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return model.train()


def row_of(tokens: int, vocabulary: int, seed: int = 0, share: bool = True) -> PackedRow:
    """A row of about ``tokens`` tokens: questions whose trajectories share a prompt and, half of them, a first step.

    A prompt is an eighth of a question's tokens, as with prompts of 512 tokens and responses of 256. Without ``share`` the same
    trajectories have a prompt each.
    """
    numbers = np.random.default_rng(seed)
    whole = min(tokens, 4096)
    prompt, step = whole // 8, whole // 32
    response = (whole - prompt - step) // GROUP

    def drawn(count: int) -> np.ndarray:
        return numbers.integers(0, vocabulary, count)

    def sample(start: np.ndarray, count: int) -> Sample:
        ids = np.concatenate([start, drawn(count)])
        zeros = np.zeros(len(ids), np.float32)
        return Sample(ids, np.ones(len(ids), bool), zeros, zeros + 1, 0.0, 1.0 / (GROUP * len(ids)))

    groups = []
    for _ in range(tokens // whole):
        shared = drawn(step)
        samples = [sample(shared if index % 2 else drawn(0), response) for index in range(GROUP)]
        groups.append(SampleGroup(drawn(prompt), tuple(samples)))
    (row,) = pack_rows(groups, 2 * GROUP * tokens, share)
    return row


def visible_pairs(row: PackedRow) -> int:
    """Pairs of a token and one that it sees: the same as ``row.mask().sum()``, without the mask."""
    index = torch.arange(row.num_tokens)
    return int((row.subtree_ends.cpu() - index).sum())


def model_flops(sizes: Shape, row: PackedRow) -> dict[str, float]:
    """Operations of a forward and a backward pass by part; what checkpointing computes again does not count.

        projections 6 M T,  products of queries, keys and values 12 L H D pairs,  head 6 S d V

    ``M`` elements of a part's matrices, ``T`` tokens of the row, ``S`` of them scored, ``L`` layers, ``H`` heads of ``D``,
    ``d`` hidden size, ``V`` vocabulary. A product of ``[a, b]`` and ``[b, c]`` is ``2 a b c``; backward is twice forward.
    """
    width = sizes.heads * (sizes.hidden // sizes.heads)
    projections = 2 * sizes.hidden * (width + width * sizes.kv_heads // sizes.heads)
    return {
        "attention": sizes.layers * (6 * row.num_tokens * projections + 12 * width * visible_pairs(row)),
        "mlp": 6 * row.num_tokens * sizes.layers * 3 * sizes.hidden * sizes.intermediate,
        "head": 6 * len(row.scored_ids) * sizes.hidden * sizes.vocabulary,
    }
