"""Bytes of a learner's states, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import AutoConfig

from rapo_rllib.estimate.shape import ModelShape, adapter_size, kv_bytes_per_token, model_shape
from rapo_rllib.estimate.states import (
    States,
    gathered_bytes,
    learner_states,
    packed_bytes,
    reference_bytes,
    rounded_copy_bytes,
)
from rapo_rllib.settings import LoraSettings, ModelSettings

QWEN_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
QWEN_32B = {
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
TINY = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "vocab_size": 10,
}


def shape_of(kind: str, sizes: dict, lora: LoraSettings | None = None) -> ModelShape:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return model_shape(AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)), lora)


def test_a_tiny_llama_by_hand() -> None:
    """A layer: q and o 8 x 8, k and v 4 x 8, three of the MLP 12 x 8, two norms of 8: 64 + 64 + 32 + 32 + 288 + 16 = 496."""
    untied = shape_of("llama", {**TINY, "tie_word_embeddings": False})
    assert untied.largest_layer == 496
    assert untied.parameters == 3 * 496 + 8 + 2 * 80
    assert untied.root == 168
    assert untied.matrices == untied.parameters - 80
    tied = shape_of("llama", {**TINY, "tie_word_embeddings": True})
    assert tied.parameters == 3 * 496 + 8 + 80 == tied.matrices
    assert (tied.tied, tied.head, tied.layers, tied.kv_heads, tied.head_dim) == (True, 80, 3, 2, 2)


def test_qwen2_of_7_and_32_billion() -> None:
    """The published counts: 7.615 and 32.764 billion."""
    assert shape_of("qwen2", QWEN_7B).parameters == 7_615_616_512
    assert shape_of("qwen2", QWEN_32B).parameters == 32_763_876_352


def test_adapters_are_those_that_peft_makes() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from rapo_rllib.learner.adapters import Adapters

    for targets in ("all-linear", ("q_proj", "down_proj")):
        lora = LoraSettings(rank=3, target_modules=targets)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TINY))
        counted = model_shape(model, lora)
        assert counted.adapters == sum(tensor.numel() for tensor in Adapters(model, lora).tensors().values())
    assert adapter_size(8, 12, 3) == 60
    assert counted.adapters == 3 * (adapter_size(8, 8, 3) + adapter_size(8, 12, 3))
    assert counted.adapted == 3 * (64 + 96)


def test_keys_and_values() -> None:
    """7B: 2 * 28 layers * 4 heads * 128 * 2 bytes = 57,344; over 8 workers one head each."""
    shape = shape_of("qwen2", QWEN_7B)
    assert kv_bytes_per_token(shape, 2) == 57_344
    assert kv_bytes_per_token(shape, 2, 2) == 28_672
    assert kv_bytes_per_token(shape, 2, 8) == 14_336


@pytest.mark.parametrize(
    ("settings", "shards", "expected"),
    [
        (ModelSettings(), 1, States(4000, 4000, 8000, 0)),
        (ModelSettings(), 4, States(1000, 1000, 2000, 0)),
        (ModelSettings(dtype="bfloat16"), 1, States(2000, 4000, 8000, 4000)),
        (ModelSettings(dtype="bfloat16"), 4, States(1000, 1000, 2000, 0)),
        (ModelSettings(dtype="bfloat16", master_weights=None), 1, States(2000, 2000, 4000, 0)),
        (ModelSettings(dtype="bfloat16", master_weights=None), 4, States(500, 500, 1000, 0)),
        (ModelSettings(lora=LoraSettings()), 1, States(4040, 40, 80, 0)),
        (ModelSettings(dtype="bfloat16", lora=LoraSettings()), 1, States(2040, 40, 80, 0)),
        (ModelSettings(dtype="bfloat16", lora=LoraSettings()), 4, States(510, 10, 20, 0)),
    ],
)
def test_states_of_a_thousand_parameters(settings: ModelSettings, shards: int, expected: States) -> None:
    assert learner_states(thousand(settings), settings, shards) == expected


def thousand(settings: ModelSettings) -> ModelShape:
    made = shape_of("llama", TINY)
    with_lora = settings.lora is not None
    return replace(
        made, parameters=1000, adapters=10 if with_lora else 0, adapted=600 if with_lora else 0, root=100, largest_layer=300
    )


def test_the_formula_is_what_the_optimiser_holds() -> None:
    """A step of the real optimisers on a real model: the sum over their tensors."""
    import torch
    from transformers import AutoModelForCausalLM

    from rapo_rllib.learner.master_weights import MasterWeightAdamW

    for dtype, masters in (("float32", None), ("bfloat16", "float32"), ("bfloat16", None)):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TINY), dtype=getattr(torch, dtype))
        parameters = list(model.parameters())
        optimizer = (MasterWeightAdamW if masters else torch.optim.AdamW)(parameters)
        model(input_ids=torch.ones(1, 2, dtype=torch.int64)).logits.sum().backward()
        optimizer.step()
        stepped = optimizer.masters if masters else parameters
        held = [*parameters, *(p.grad for p in stepped), *(optimizer.masters if masters else [])]
        held += [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
        found = sum(tensor.numel() * tensor.element_size() for tensor in held)
        settings = ModelSettings(dtype=dtype, master_weights=masters)
        expected = learner_states(model_shape(model, None), settings)
        assert found == expected.gradients + sum(part.num_bytes for part in expected.kept)


def test_what_shards_gather() -> None:
    """Root and two layers, 100 + 2 * 300 elements: weights in 2 bytes and gradients in 4, or frozen."""
    low = ModelSettings(dtype="bfloat16")
    assert gathered_bytes(thousand(low), low) == 700 * 6
    frozen = ModelSettings(dtype="bfloat16", lora=LoraSettings())
    assert gathered_bytes(thousand(frozen), frozen) == 700 * 2


def test_the_reference_model() -> None:
    full, adapted = ModelSettings(), ModelSettings(lora=LoraSettings())
    assert reference_bytes(thousand(full), full, 0.1) == 4000
    assert reference_bytes(thousand(full), full, 0.1, shards=4) == 1000
    assert reference_bytes(thousand(full), full, 0.0) == 0
    assert reference_bytes(thousand(adapted), adapted, 0.1) == 0


@pytest.mark.parametrize(
    ("settings", "engine", "shards", "expected"),
    [
        (ModelSettings(), "float32", 1, 0),
        (ModelSettings(), "bfloat16", 1, 4000),
        (ModelSettings(dtype="bfloat16"), "bfloat16", 1, 0),
        (ModelSettings(dtype="bfloat16"), "bfloat16", 2, 2000),  # shards are float32
        (ModelSettings(lora=LoraSettings()), "bfloat16", 1, 600 * 4 + 4000 + 40),
        (ModelSettings(dtype="bfloat16", lora=LoraSettings()), "bfloat16", 1, 600 * 2 + 40),
    ],
)
def test_copies_while_scoring_as_an_engine(settings: ModelSettings, engine: str, shards: int, expected: int) -> None:
    assert rounded_copy_bytes(thousand(settings), settings, engine, shards) == expected


def test_packed_weights_are_those_of_the_module() -> None:
    """Tied, of 1,000 parameters: the LM head of 80 elements comes twice."""
    full, adapted = ModelSettings(), ModelSettings(lora=LoraSettings())
    assert packed_bytes(replace(thousand(full), tied=True), full, 2) == 2160
    assert packed_bytes(replace(thousand(full), tied=False), full, 2) == 2000
    assert packed_bytes(thousand(adapted), adapted, 2) == 40
