"""Bytes of a learner and of an engine: worked by hand, allocated, and counted tensor by tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rapo_rllib import RAPOConfig
from rapo_rllib.estimate.memory import (
    Row,
    Shape,
    engine_bytes,
    packed_bytes,
    pass_parts,
    row_of,
    state_parts,
    whole_bytes,
)
from rapo_rllib.settings import LoraSettings, ModelSettings, Settings

Checkpointing = bool | Literal["selective"]
TINY = Shape(hidden=8, intermediate=12, layers=3, heads=4, kv_heads=2, head_dim=2, vocabulary=10, tied=True)
SIZES = {
    "135M": Shape(576, 1536, 30, 9, 3, 64, 49152, True),  # SmolLM2
    "0.5B": Shape(896, 4864, 24, 14, 2, 64, 151936, True),  # Qwen2.5, as the others
    "1.5B": Shape(1536, 8960, 28, 12, 2, 128, 151936, True),
    "7B": Shape(3584, 18944, 28, 28, 4, 128, 152064, False),
}
LORA = LoraSettings(rank=16)
PRECISIONS = {
    "float32": ModelSettings(autocast_dtype=None),
    "autocast": ModelSettings(autocast_dtype="bfloat16"),
    "bfloat16": ModelSettings(dtype="bfloat16"),
    "bfloat16 alone": ModelSettings(dtype="bfloat16", master_weights=None),
    "LoRA": ModelSettings(dtype="bfloat16", lora=LORA),
    "LoRA, autocast": ModelSettings(autocast_dtype="bfloat16", lora=LORA),
}
ROWS = {512: Row(512, 384, 224), 2048: Row(2048, 1792, 480), 8192: Row(8192, 7168, 1920)}  # groups of 4, 8 and 8
CHUNK, ALL = 1024, 10**6  # of logits

# Model, tokens of a row, precision, gradient checkpointing, chunk of logits, MB (10^6 bytes) above states and gradients at the
# peak of a pass. Counted on 2026-11-28: the learner's own forward and backward pass (blocks of SDPA, as on a CPU) on tensors
# that have shapes and lifetimes but no data.
COUNTED: list[tuple[str, int, str, Checkpointing, int, int]] = [
    ("135M", 512, "float32", False, CHUNK, 949),
    ("135M", 512, "bfloat16", True, CHUNK, 170),
    ("135M", 2048, "autocast", False, ALL, 2569),
    ("135M", 2048, "LoRA", True, CHUNK, 193),
    ("135M", 8192, "autocast", False, CHUNK, 9652),
    ("135M", 8192, "bfloat16", True, ALL, 1117),
    ("135M", 8192, "LoRA", "selective", CHUNK, 8551),
    ("0.5B", 512, "bfloat16", "selective", CHUNK, 817),
    ("0.5B", 2048, "autocast", True, CHUNK, 1634),
    ("0.5B", 2048, "bfloat16 alone", True, CHUNK, 923),
    ("0.5B", 2048, "LoRA, autocast", "selective", CHUNK, 3389),
    ("0.5B", 8192, "float32", "selective", ALL, 16442),
    ("0.5B", 8192, "bfloat16", False, CHUNK, 12936),
    ("1.5B", 512, "LoRA", "selective", CHUNK, 2193),
    ("1.5B", 2048, "float32", True, ALL, 2800),
    ("1.5B", 2048, "bfloat16 alone", False, CHUNK, 7626),
    ("1.5B", 2048, "LoRA, autocast", False, CHUNK, 9863),
    ("1.5B", 8192, "autocast", "selective", CHUNK, 16300),
    ("7B", 512, "autocast", True, CHUNK, 14496),
    ("7B", 2048, "float32", False, CHUNK, 32004),
    ("7B", 2048, "autocast", "selective", CHUNK, 21469),
    ("7B", 2048, "bfloat16", "selective", CHUNK, 9834),
    ("7B", 2048, "LoRA", False, ALL, 19132),
    ("7B", 8192, "autocast", True, ALL, 20066),
    ("7B", 8192, "bfloat16", False, CHUNK, 58524),
    ("7B", 8192, "LoRA", True, CHUNK, 5331),
]


def settings(**keys: Any) -> Settings:
    return RAPOConfig().update_from_dict({"retrieval_prob": 0, **keys}).settings


def sizes(shape: Shape, model: ModelSettings, shards: int = 1) -> dict[str, int]:
    return {part.name: part.num_bytes for part in state_parts(shape, model, shards)}


def passing(shape: Shape, model: ModelSettings, row: Row) -> int:
    return sum(part.num_bytes for part in pass_parts(shape, model, row))


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: " ".join(map(str, case[:5])))
def test_a_pass_is_what_was_counted(case: tuple[str, int, str, Checkpointing, int, int]) -> None:
    """All that a learner holds at the peak of an update within 4 %; what the pass adds alone within 12 %."""
    name, tokens, precision, checkpointing, chunk, counted = case
    model = replace(PRECISIONS[precision], gradient_checkpointing=checkpointing, logits_chunk_size=chunk)
    held, passed = sizes(SIZES[name], model), passing(SIZES[name], model, ROWS[tokens])
    assert passed == pytest.approx(counted * 1e6, rel=0.12)
    assert passed + sum(held.values()) == pytest.approx(counted * 1e6 + sum(held.values()), rel=0.04)


@pytest.mark.parametrize(
    ("model", "shards", "expected"),
    [
        (ModelSettings(), 1, (4, 0, 0, 8, 4)),
        (ModelSettings(), 4, (1, 0, 0, 2, 1)),
        (ModelSettings(dtype="bfloat16"), 1, (2, 0, 4, 8, 4)),
        (ModelSettings(dtype="bfloat16"), 4, (1, 0, 0, 2, 1)),
        (ModelSettings(dtype="bfloat16", master_weights=None), 1, (2, 0, 0, 4, 2)),
        (ModelSettings(dtype="bfloat16", master_weights=None), 4, (0.5, 0, 0, 1, 0.5)),
    ],
)
def test_states_by_hand(model: ModelSettings, shards: int, expected: tuple[float, ...]) -> None:
    """Bytes a parameter: weights, adapters, masters, moments, gradients."""
    held = sizes(TINY, model, shards)
    names = ("weights", "adapters", "master weights", "Adam's moments", "gradients")
    assert [held.get(name, 0) for name in names] == [each * TINY.parameters for each in expected]


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_states_with_adapters(dtype: str, width: int) -> None:
    adapters = TINY.adapters(LORA)
    expected = [width * TINY.parameters, 4 * adapters, 8 * adapters, 4 * adapters]
    assert list(sizes(TINY, ModelSettings(dtype=dtype, lora=LORA)).values()) == expected
    assert list(sizes(TINY, ModelSettings(dtype=dtype, lora=LORA), 2).values()) == [size // 2 for size in expected]


@pytest.mark.parametrize(("dtype", "masters"), [("float32", None), ("bfloat16", "float32"), ("bfloat16", None)])
def test_states_are_what_the_optimiser_allocates(dtype: str, masters: str | None) -> None:
    """A model of the 135M shape on the meta device after a step: the sum over all its tensors, to the byte."""
    from rapo_rllib.learner.master_weights import MasterWeightAdamW

    shape = SIZES["135M"]
    config = AutoConfig.for_model(
        "llama",
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        parameters = list(AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).parameters())
    optimizer = (MasterWeightAdamW if masters else torch.optim.AdamW)(parameters, foreach=False)
    stepped = optimizer.param_groups[0]["params"]
    for parameter in stepped:
        parameter.grad = torch.empty_like(parameter)
    torch.optim.AdamW.step(optimizer)
    held = [*parameters, *(parameter.grad for parameter in stepped), *(stepped if masters else [])]
    held += [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
    model = ModelSettings(dtype=dtype, master_weights=masters)  # type: ignore[arg-type]
    assert sum(tensor.numel() * tensor.element_size() for tensor in held if tensor is not None) == sum(
        sizes(shape, model).values()
    )


@pytest.mark.parametrize(
    ("budget", "questions", "expected"),
    [
        (2048, 10**3, Row(2048, 1792, 480)),
        (2048, 1, Row(1024, 768, 480)),  # half of a step of 256 + 8 * 224 tokens
        (100, 10**3, Row(480, 224, 480)),  # a trajectory is never cut
    ],
)
def test_a_row_by_hand(budget: int, questions: int, expected: Row) -> None:
    keys = {"max_tokens_per_micro_batch": budget, "questions_per_step": questions, "num_hybrid": 0, "num_minibatches": 2}
    lengths = {"max_prompt_tokens": 256, "max_response_tokens": 224, "group_size": 8}
    assert row_of(settings(**keys, **lengths)) == expected


def test_what_shards_hold_whole() -> None:
    """Root and two layers, 88 + 2 * 496 elements: weights in 2 bytes, gradients of a layer in 4, or frozen."""
    assert whole_bytes(TINY, ModelSettings(dtype="bfloat16"), 2) == 1080 * 2 + 496 * 4
    assert whole_bytes(TINY, ModelSettings(dtype="bfloat16", lora=LORA), 2) == 1080 * 2
    assert whole_bytes(TINY, ModelSettings(), 1) == 0


def test_packed_weights_are_those_of_the_module() -> None:
    """Tied, the LM head of 80 elements comes twice."""
    assert packed_bytes(TINY, ModelSettings(), 2) == packed_bytes(replace(TINY, tied=False), ModelSettings(), 2) == 2 * 1656
    assert packed_bytes(TINY, ModelSettings(lora=LORA), 2) == 4 * TINY.adapters(LORA)


def test_an_engine_by_hand() -> None:
    """2,048 tokens of 4 * 8 + 3 * 12 = 68 elements in 2 bytes, and logits of 5 sequences, 10 words, three times in float32.

    On a CPU a tied head is packed once more.
    """
    step, token = 2048 * 68 * 2 + 600, 2 * 2 * 3 * 2 * 2
    for gpus, parameters in ((0, 1576 + 80), (1, 1576)):
        job = settings(num_env_runners=1, num_gpus_per_env_runner=gpus, engine={"dtype": "bfloat16", "max_num_seqs": 5})
        assert engine_bytes(TINY, job) == (2 * parameters, step, token)


@pytest.mark.parametrize(("workers", "expected"), [(1, 57_344), (2, 28_672), (8, 14_336)])
def test_keys_and_values_over_workers(workers: int, expected: int) -> None:
    """7B: 2 * 28 layers * 4 heads * 128 * 2 bytes; over 8 workers one head each."""
    engine = {"dtype": "bfloat16", "tensor_parallel_size": workers}
    job = settings(num_env_runners=1, num_gpus_per_env_runner=workers, engine=engine)
    assert engine_bytes(SIZES["7B"], job)[2] == expected
