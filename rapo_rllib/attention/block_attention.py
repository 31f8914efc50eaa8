"""An attention function for transformers along a prefix tree: FlexAttention by a row's block mask, or SDPA block by block.

    PackedRow --TreeBlocks--> blocks of queries with the keys they see --tree_attention, in every layer--> attention output

With one dense ``[L, L]`` mask each token pays for ``L`` keys, though most see only a prompt and a part of one response. Here
the row is cut into blocks of queries, and each block attends only to pieces of the row that at least one of its queries sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask

from rapo_rllib.attention.flex import attend_by_flex

if TYPE_CHECKING:
    from rapo_rllib.batching.packing import PackedRow

MIN_BLOCK, MAX_BLOCK = 64, 512  # queries: small segments are joined up to the first, long ones are cut at the second


class TreeBlocks:
    """The blocks that a row's queries are cut into, and the pieces of the row that each block sees.

    Example: a prompt of 300 tokens with responses of 150 and 120 makes three blocks; the last one's keys are the pieces
    ``[0, 300)`` and ``[450, 570)``. Its mask, ``[120, 420]``, lets every query see the first piece and its own part causally.
    """

    def __init__(self, row: PackedRow) -> None:
        self._ends, self._positions = row.subtree_ends, row.position_ids
        ends = row.subtree_ends.tolist()
        self._blocks = list(pairwise([0, *_block_stops(ends)]))
        self._seen = [_visible_runs(ends, start, stop) for start, stop in self._blocks]
        cuts = sorted({edge for runs in self._seen for run in runs for edge in run})
        piece = {cut: index for index, cut in enumerate(cuts)}
        self.query_sizes = [stop - start for start, stop in self._blocks]
        self.key_sizes = [stop - start for start, stop in pairwise(cuts)]
        self.block_pieces = [[i for a, b in runs for i in range(piece[a], piece[b])] for runs in self._seen]
        self._masks: dict[tuple[int | None, torch.dtype], list[torch.Tensor]] = {}

    def masks(self, window: int | None, dtype: torch.dtype) -> list[torch.Tensor]:
        """Make the mask of every block once for all layers, ``[queries, keys]``: 0 where a key is visible, else -infinity."""
        if (window, dtype) not in self._masks:
            blocks = zip(self._blocks, self._seen, strict=True)
            self._masks[window, dtype] = [self._mask(*block, runs, window).to(dtype) for block, runs in blocks]
        return self._masks[window, dtype]

    def _mask(self, start: int, stop: int, runs: Sequence[tuple[int, int]], window: int | None) -> torch.Tensor:
        device = self._ends.device
        queries = torch.arange(start, stop, device=device)[:, None]
        keys = torch.cat([torch.arange(a, b, device=device) for a, b in runs])
        visible = (queries >= keys) & (queries < self._ends[keys])
        if window is not None:
            visible &= self._positions[queries] - self._positions[keys] < window
        return torch.zeros(visible.shape, device=device).masked_fill(~visible, -torch.inf)


def _block_stops(ends: Sequence[int]) -> list[int]:
    """Find where blocks of queries end: at a segment's end once a block has ``MIN_BLOCK``, and at ``MAX_BLOCK`` queries."""
    stops, start = [], 0
    for index in range(1, len(ends) + 1):
        segment_ends = index == len(ends) or ends[index] != ends[index - 1]
        if index == len(ends) or index - start == MAX_BLOCK or (segment_ends and index - start >= MIN_BLOCK):
            stops.append(index)
            start = index
    return stops


def _visible_runs(ends: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
    """Find the stretches of the row that queries in ``[start, stop)`` may see: themselves, and tokens with ``start`` below."""
    seen = [index for index in range(start) if ends[index] > start]
    runs: list[tuple[int, int]] = []
    for index in [*seen, *range(start, stop)]:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: BlockMask | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    tree: TreeBlocks | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend in one layer, called by transformers; without a ``tree`` or block mask, attend as in ordinary sequences.

    Args:
        module: the layer.
        query: ``[B, H, L, D]``; ``key`` and ``value`` may have fewer heads.
        key: ``[B, H', K, D]``; K is ``L``, or more with a cache.
        value: ``[B, H', K, D]``.
        attention_mask: ``[B, 1, L, K]``, bool or added to scores; or a packed row's block mask; None: causal, and a single
            query sees all keys of the cache. Not read with a ``tree``.
        dropout: of attention weights, except with a block mask.
        scaling: of scores; by default one over the square root of ``D``.
        sliding_window: how many positions this layer sees; only read where there is a ``tree``.
        softcap: scores ``s`` become ``softcap * tanh(s / softcap)``.
        tree: the blocks of the packed row.
        kwargs: arguments of other attention functions, not read.

    Returns:
        ``[B, L, H, D]``, and None instead of attention weights.
    """
    if isinstance(attention_mask, BlockMask):
        output = attend_by_flex(module.training, (query, key, value), attention_mask, scaling, softcap)
        return output.transpose(1, 2).contiguous(), None
    if tree is None:
        output = _attend(query, key, value, attention_mask, dropout, scaling, softcap)
        return output.transpose(1, 2).contiguous(), None
    # split and cat, not slices: a slice's gradient is as large as the row, and there would be one for every block
    queries = query.split(tree.query_sizes, dim=2)
    keys, values = key.split(tree.key_sizes, dim=2), value.split(tree.key_sizes, dim=2)
    outputs = [
        _attend(own, _cat(keys, pieces), _cat(values, pieces), mask, dropout, scaling, softcap)
        for own, pieces, mask in zip(queries, tree.block_pieces, tree.masks(sliding_window, query.dtype), strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _cat(pieces: Sequence[torch.Tensor], chosen: Sequence[int]) -> torch.Tensor:
    return pieces[chosen[0]] if len(chosen) == 1 else torch.cat([pieces[index] for index in chosen], dim=2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    grouped, last = key.shape[1] != query.shape[1], query.shape[2] == 1  # last: sees all that is cached
    if grouped and (query.device.type != "cpu" or softcap is not None):  # only the CPU's kernel takes both a mask and groups
        repeats = query.shape[1] // key.shape[1]
        key, value, grouped = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1), False
    if softcap is None:
        return F.scaled_dot_product_attention(
            query, key, value, mask, dropout, is_causal=mask is None and not last, scale=scaling, enable_gqa=grouped
        )
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(scores.shape[-1] if last else 0)
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    at_least_float32 = torch.promote_types(scores.dtype, torch.float32)
    return F.dropout(torch.softmax(scores, -1, dtype=at_least_float32).to(value.dtype), dropout) @ value
