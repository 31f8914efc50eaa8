"""FlexAttention along a prefix tree: a block mask made from where each token's subtree ends.

A token sees an earlier one if it lies in that one's subtree: one comparison. Whether a block of 128 queries sees any, or all,
of a block of 128 keys follows from the least and greatest subtree end in the key block, so that no ``[L, L]`` mask ever exists.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask

if TYPE_CHECKING:
    from rapo_rllib.batching.packing import PackedRow

BLOCK = 128  # tokens, the block size that FlexAttention's kernels are written for
LEAST = 256  # tokens of a row
RECOMPILE_LIMIT = 64  # of one function; PyTorch's 8 are not enough for two kinds of layers, with and without gradients


def attend_by_flex(
    training: bool, inputs: tuple[torch.Tensor, ...], mask: BlockMask, scaling: float | None, softcap: float | None
) -> torch.Tensor:
    """Attend in one layer ``[1, H, L, D]``; transformers' own repeats keys unless the number of heads is a power of two.

    ``inputs``: query, key and value; e.g. 28 heads may share 4 key heads. ``mask``: made by :func:`block_mask`. All other
    arguments are those of ``tree_attention``.
    """
    from transformers.integrations import flex_attention as integration

    cap = None if softcap is None else lambda score, *_: softcap * torch.tanh(score / softcap)
    output: torch.Tensor = integration.compile_friendly_flex_attention(
        *inputs, training=training, score_mod=cap, block_mask=mask, scale=scaling, enable_gqa=True
    )
    return output


def padded_row(row: PackedRow) -> PackedRow:
    """Pad the row to a multiple of ``BLOCK`` tokens; an appended token sees, and is seen by, itself only.

    It gets at least ``LEAST`` tokens: kernels of shorter rows are not fused, and each length would be compiled for itself.
    """
    missing = max(LEAST, -(-row.num_tokens // BLOCK) * BLOCK) - row.num_tokens
    index = torch.arange(row.num_tokens, row.num_tokens + missing, device=row.token_ids.device)
    return replace(
        row,
        token_ids=F.pad(row.token_ids, (0, missing)),
        position_ids=F.pad(row.position_ids, (0, missing)),
        subtree_ends=torch.cat([row.subtree_ends, index + 1]),
    )


def block_mask(row: PackedRow, window: int | None = None) -> BlockMask:
    """Convert ``row.mask(window)`` to FlexAttention's block mask; the row's length must be a multiple of ``BLOCK``."""
    ends, positions = row.subtree_ends, row.position_ids

    def visible(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = (query >= key) & (query < ends[key])
        return seen if window is None else seen & (positions[query] - positions[key] < window)

    some, every = _visible_blocks(ends.view(-1, BLOCK), positions.view(-1, BLOCK), window)
    partial_blocks, full_blocks = _ordered(some & ~every), _ordered(every)
    return BlockMask.from_kv_blocks(*partial_blocks, *full_blocks, BLOCK_SIZE=BLOCK, mask_mod=visible)


def _visible_blocks(ends: torch.Tensor, positions: torch.Tensor, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the key blocks that a query block may see some of, and all of: two ``[n, n]``, from arguments ``[n, BLOCK]``."""
    index = torch.arange(len(ends), device=ends.device)
    queries, keys = index[:, None], index
    some = (queries >= keys) & (ends.amax(1) > queries * BLOCK)
    every = (queries > keys) & (ends.amin(1) >= (queries + 1) * BLOCK)
    if window is not None:
        some &= positions.amin(1)[:, None] - positions.amax(1) < window
        every &= positions.amax(1)[:, None] - positions.amin(1) < window
    return some, every & some


def _ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Count each query block's key blocks, ``[1, 1, n]``, and list indices, ``[1, 1, n, n]``: the counted ones come first."""
    counts = blocks.sum(1, dtype=torch.int32)
    indices = blocks.int().argsort(dim=1, descending=True, stable=True).int()
    return counts[None, None], indices[None, None]
