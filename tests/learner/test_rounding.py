"""Weights are rounded one layer after the other, to the same scores as all at once, and have their own values afterwards."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny_model

from rapo_rllib.learner.rl_module import _logprobs, _sequence_logprobs
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
    for scores in (_logprobs(model, SEQUENCES, torch.bfloat16, None), _logprobs(model, SEQUENCES, torch.bfloat16, None)):
        assert scores == expected != own
    assert all(map(torch.equal, model.parameters(), before))
    assert [_sequence_logprobs(model, sequence) for sequence in SEQUENCES] == own  # and is compiled as before


@torch.no_grad()
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_pass_that_fails_leaves_no_weight_rounded(error: type[BaseException]) -> None:
    model = tiny_model("llama", torch.float32).eval()
    before = [parameter.clone() for parameter in model.parameters()]

    def fall_over(*arguments: object) -> None:
        raise error("a disk is gone")

    hook = model.model.layers[1].mlp.register_forward_hook(fall_over)
    with pytest.raises(error, match="a disk is gone"):
        _logprobs(model, SEQUENCES, torch.bfloat16, None)
    assert all(map(torch.equal, model.parameters(), before))
    hook.remove()
    with rounded(model, torch.bfloat16):
        assert all(torch.equal(p, p.bfloat16().float()) for p in model.get_input_embeddings().parameters())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.model.layers)


@torch.no_grad()
def test_adapters_are_merged_once_where_layers_stand_in_layers() -> None:
    model = tiny_model("llama", torch.float32).eval()
    model._no_split_modules = ["LlamaDecoderLayer", "LlamaMLP"]
    up, query = model.model.layers[0].mlp.up_proj.weight, model.model.layers[0].self_attn.q_proj.weight
    before, seen = (up.clone(), query.clone()), []
    merges = {id(weight): lambda weight=weight: weight.detach() + 1 for weight in (up, query)}
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: seen.append((up.clone(), query.clone())))
    with rounded(model, torch.float32, SimpleNamespace(merges=lambda: merges)):
        model(input_ids=torch.tensor(SEQUENCES[:1]))
    assert all(torch.equal(found, own + 1) for found, own in zip(seen[0], before, strict=True))
    assert torch.equal(up, before[0]) and torch.equal(query, before[1])
