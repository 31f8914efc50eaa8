"""Compute hidden states of a packed row, by the kind of attention that the model and the device support.

Shapes: ``L`` tokens of a row, ``D`` hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence

from rapo_rllib.attention.block_attention import TreeBlocks, tree_attention
from rapo_rllib.attention.flex import RECOMPILE_LIMIT, block_mask, padded_row

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from rapo_rllib.batching.packing import PackedRow


class RowAttention(StrEnum):
    """The kind of attention by which a packed row goes through a model."""

    FLEX = "flex"  # FlexAttention with a block mask
    BLOCKS = "blocks"  # SDPA on blocks of queries, by an attention function of ours
    MASK = "mask"  # the model's own attention with one dense 4-D mask
    UNSHARED = "unshared"  # every prompt + response as a sequence of its own, for models that take none of these


def use_attention(language_model: PreTrainedModel, attention: RowAttention) -> None:
    """Switch the model to the attention function that ``attention`` needs; a no-op if that is the model's own."""
    if attention not in (RowAttention.FLEX, RowAttention.BLOCKS):
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if attention is RowAttention.FLEX:
        config = torch._dynamo.config  # past its limit PyTorch would run it unfused
        config.recompile_limit = max(config.recompile_limit, RECOMPILE_LIMIT)
    AttentionInterface.register("tree", tree_attention)
    AttentionMaskInterface.register("tree", sdpa_mask)  # for ordinary sequences: a packed row brings its own mask
    language_model.set_attn_implementation("tree")


@contextmanager
def switched_to(language_model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Switch the model, inside the context, to the attention function that transformers knows under this name."""
    own = language_model.config._attn_implementation
    language_model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        language_model.set_attn_implementation(own)


def hidden_states(language_model: PreTrainedModel, row: PackedRow, attention: RowAttention) -> torch.Tensor:
    """Compute last hidden states ``[L, D]`` of a row's tokens; the model must have been switched by :func:`use_attention`."""
    return _FORWARDS[attention](language_model, row)


def _flex(language_model: PreTrainedModel, row: PackedRow) -> torch.Tensor:
    padded = padded_row(row)
    masks = _per_kind_of_layer(language_model.config, lambda window: block_mask(padded, window))
    return _decode(language_model, padded, masks)[: row.num_tokens]


def _blocks(language_model: PreTrainedModel, row: PackedRow) -> torch.Tensor:
    # a 4-D mask is passed through as it is: this one only keeps the model from making its own, [L, L]
    unread = torch.zeros(1, 1, 1, 1, device=row.token_ids.device)
    masks = _per_kind_of_layer(language_model.config, lambda window: unread)
    return _decode(language_model, row, masks, tree=TreeBlocks(row))


def _mask(language_model: PreTrainedModel, row: PackedRow) -> torch.Tensor:
    dtype = next(language_model.parameters()).dtype

    def dense(window: int | None) -> torch.Tensor:
        visible = row.mask(window)[None, None]
        if language_model.config._attn_implementation == "sdpa":
            return visible
        return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)

    return _decode(language_model, row, _per_kind_of_layer(language_model.config, dense))


def _unshared(language_model: PreTrainedModel, row: PackedRow) -> torch.Tensor:
    """Compute states of right-padded sequences without a mask: in a causal model no token sees the padding behind it."""
    starts = (row.position_ids == 0).nonzero()[:, 0].tolist()
    lengths = [stop - start for start, stop in zip(starts, [*starts[1:], row.num_tokens], strict=True)]
    padded = pad_sequence(row.token_ids.split(lengths), batch_first=True)
    hidden = language_model.get_decoder()(input_ids=padded, use_cache=False).last_hidden_state
    return torch.cat([states[:length] for states, length in zip(hidden, lengths, strict=True)])


_FORWARDS: dict[RowAttention, Callable[[Any, Any], torch.Tensor]] = {
    RowAttention.FLEX: _flex,
    RowAttention.BLOCKS: _blocks,
    RowAttention.MASK: _mask,
    RowAttention.UNSHARED: _unshared,
}


def _decode(language_model: PreTrainedModel, row: PackedRow, masks: Any, **options: Any) -> torch.Tensor:
    output = language_model.get_decoder()(
        input_ids=row.token_ids[None],
        position_ids=row.position_ids[None],
        attention_mask=masks,
        use_cache=False,
        **options,
    )
    return output.last_hidden_state[0]


def _per_kind_of_layer(config: PretrainedConfig, mask: Callable[[int | None], Any]) -> Any:
    """Make one mask, or one per kind of layer if some layers see only a sliding window."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in kinds:
        return {kind: mask(window if kind == "sliding_attention" else None) for kind in kinds}
    return mask(None if kinds else window)
