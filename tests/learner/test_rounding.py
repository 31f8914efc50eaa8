"""Weights are rounded one layer after the other, to the same scores as all at once, and have their own values afterwards."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import tiny_model

from rapo_rllib.learner.rl_module import _rounded_logprobs, _sequence_logprobs
from rapo_rllib.learner.rounding import rounded
from rapo_rllib.models.activation_checkpointing import compile_layers

SEQUENCES = [[4, 5, 6, 7], [9, 8]]


def rounded_copy(model: torch.nn.Module) -> torch.nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter.bfloat16())
    return other


@torch.no_grad()
@pytest.mark.parametrize("compiled", [False, True])
def test_scores_are_those_of_a_model_that_is_rounded_as_a_whole(compiled: bool) -> None:
    """Code that was compiled before knows nothing of layers that are rounded."""
    model = tiny_model("llama", torch.float32).eval()
    before = [parameter.clone() for parameter in model.parameters()]
    expected = [_sequence_logprobs(rounded_copy(model), sequence) for sequence in SEQUENCES]
    if compiled:
        compile_layers(model, "aot_eager")
    own = [_sequence_logprobs(model, sequence) for sequence in SEQUENCES]
    for scores in (_rounded_logprobs(model, SEQUENCES, torch.bfloat16), _rounded_logprobs(model, SEQUENCES, torch.bfloat16)):
        assert scores == expected != own
    assert all(map(torch.equal, model.parameters(), before))
    assert [_sequence_logprobs(model, sequence) for sequence in SEQUENCES] == own  # and is compiled as before


@torch.no_grad()
def test_a_pass_that_fails_leaves_no_weight_rounded() -> None:
    model = tiny_model("llama", torch.float32).eval()
    before = [parameter.clone() for parameter in model.parameters()]

    def fall_over(*arguments: object) -> None:
        raise OSError("a disk is gone")

    hook = model.model.layers[1].mlp.register_forward_hook(fall_over)
    with pytest.raises(OSError, match="a disk is gone"):
        _rounded_logprobs(model, SEQUENCES, torch.bfloat16)
    assert all(map(torch.equal, model.parameters(), before))
    hook.remove()
    with rounded(model, torch.bfloat16):
        assert all(torch.equal(p, p.bfloat16().float()) for p in model.get_input_embeddings().parameters())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.model.layers)
