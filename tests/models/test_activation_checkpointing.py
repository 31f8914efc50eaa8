"""What is computed again for the backward pass, and that it changes no gradient."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tiny_models import random_groups, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from rapo_rllib.attention.forward import RowAttention, use_attention
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.learner.rl_module import score_row
from rapo_rllib.models.activation_checkpointing import enable_checkpointing
from rapo_rllib.settings import ModelSettings

SETTINGS = ModelSettings(dtype="float64", autocast_dtype=None)


class Calls(TorchDispatchMode):
    """How often each operation ran."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def step(kind: str, attention: RowAttention, checkpointing: bool | str) -> tuple[Counter[str], torch.Tensor]:
    """Calls and gradients of one forward and backward pass."""
    model = tiny_model(kind).train()
    use_attention(model, attention)
    enable_checkpointing(model, checkpointing)
    (row,) = pack_rows(random_groups([(9, [8, 6, 7])]), 1000)
    with Calls() as calls:
        score_row(model, row, SETTINGS, 1.0, attention)[0].sum().backward()
    return calls.count, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize(("kind", "attention"), [("llama", RowAttention.BLOCKS), ("qwen2", RowAttention.MASK)])
def test_selective_repeats_what_is_cheap_and_full_repeats_nearly_all(kind: str, attention: RowAttention) -> None:
    (none, expected), (selective, kept), (full, again) = (step(kind, attention, c) for c in (False, "selective", True))
    dear = ("mm.default", "addmm.default", "_scaled_dot_product_flash_attention_for_cpu.default")
    products, repeated = (sum(count[name] for name in dear) for count in (none, full))
    assert sum(selective[name] for name in dear) == products < repeated
    norms = "rsqrt.default"
    assert selective[norms] == full[norms] > none[norms] > 0
    torch.testing.assert_close(kept, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(again, expected, rtol=1e-12, atol=1e-12)


def test_unknown_value_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.gradient_checkpointing must be false, true or 'selective', got 'some'"):
        enable_checkpointing(tiny_model(), "some")
