"""Compiled decoder layers compute what the plain ones do, forward and backward; ``aot_eager`` traces as on CUDA."""

from __future__ import annotations

import pytest
import torch
from tiny_models import branched_group, tiny_model

from rapo_rllib.attention.forward import RowAttention, hidden_states
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.models.activation_checkpointing import compile_layers, enable_checkpointing


@pytest.mark.parametrize("checkpointing", [False, True])
def test_layers_compute_the_same(checkpointing: bool) -> None:
    """On rows of two lengths, which one compiled layer serves."""
    found = []
    for compiled in (False, True):
        model = tiny_model("llama", torch.float64)
        model.set_attn_implementation("sdpa")
        model.train()
        enable_checkpointing(model, checkpointing)
        names = [name for name, _ in model.named_parameters()]
        if compiled:
            assert compile_layers(model, "aot_eager") == model.config.num_hidden_layers
            assert [name for name, _ in model.named_parameters()] == names
        for length in (20, 33):
            (row,) = pack_rows([branched_group(range(3, 13), [[("a", length), ("b", 7)], [("a", length), ("c", 5)]])], 1000)
            hidden_states(model, row, RowAttention.MASK).square().mean().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


def test_a_model_that_does_not_name_its_layers_is_refused() -> None:
    model = tiny_model("llama", torch.float32)
    model._no_split_modules = None
    with pytest.raises(ValueError, match=r"model\.compile = True: LlamaForCausalLM does not name its layers"):
        compile_layers(model)
