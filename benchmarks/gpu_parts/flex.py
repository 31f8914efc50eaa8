"""FlexAttention along a prefix tree against blocks of SDPA: relative differences of hidden states and gradients."""

from __future__ import annotations

from typing import Any

import torch

from gpu_parts.machine import Sizes, twice
from gpu_parts.models import model_of, row_of
from rapo_rllib.attention.forward import RowAttention, hidden_states, use_attention

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"hidden_size": 224, "num_attention_heads": 14, "num_key_value_heads": 2},  # groups of seven, as in its 7B
    "gemma2": {"sliding_window": 100},
    "gemma3_text": {"sliding_window": 100},
}


def measured(sizes: Sizes) -> dict[str, Any]:
    """By kind of model."""
    if sizes.device == "cpu":
        return {"skipped": "FlexAttention has no backward pass on a CPU"}
    return {kind: twice(lambda kind=kind: _difference(kind, sizes.device)) for kind in KINDS}


def _difference(kind: str, device: str) -> dict[str, float]:
    row = row_of(900, 320).to(device)
    found = []
    for attention in (RowAttention.BLOCKS, RowAttention.FLEX):
        model = model_of("tiny", torch.float32, device, kind, **KINDS[kind])
        use_attention(model, attention)
        states = hidden_states(model, row, attention)
        states.square().mean().backward()
        found.append((states.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    (states, gradients), (other_states, other_gradients) = found
    return {
        "hidden_states": float((other_states - states).norm() / states.norm()),
        "gradients": float((other_gradients - gradients).norm() / gradients.norm()),
    }
