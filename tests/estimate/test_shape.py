"""Sizes from ``config.json`` against models that transformers builds on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rapo_rllib.estimate.memory import Shape, read_shape
from rapo_rllib.settings import LoraSettings, ModelSettings

TINY = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "vocab_size": 10,
}
SMALL = {**TINY, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "vocab_size": 1000}
QWEN_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}


def read(kind: str, sizes: dict[str, Any], folder: Path) -> tuple[Shape, Any]:
    config = AutoConfig.for_model(kind, **sizes)
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return read_shape(ModelSettings(name_or_path=str(folder))), model


@pytest.mark.parametrize("tied", [False, True])
def test_a_tiny_llama_by_hand(tied: bool, tmp_path: Path) -> None:
    """A layer: q and o 8 x 8, k and v 4 x 8, three of the MLP 12 x 8, two norms of 8: 64 + 64 + 32 + 32 + 288 + 16 = 496."""
    shape, model = read("llama", {**TINY, "tie_word_embeddings": tied}, tmp_path)
    assert (shape.layer, shape.head) == (496, 80)
    assert (
        shape.parameters == 3 * 496 + 8 + 80 * (1 if tied else 2) == sum(parameter.numel() for parameter in model.parameters())
    )


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"])
def test_parameters_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    """Biases and further norms are left out: in models as small as these up to a per cent."""
    shape, model = read(kind, SMALL, tmp_path)
    assert shape.parameters == pytest.approx(sum(parameter.numel() for parameter in model.parameters()), rel=0.01)


def test_qwen2_of_7_billion(tmp_path: Path) -> None:
    """The published count is 7,615,616,512, biases of 129,024 among them."""
    shape, _ = read("qwen2", QWEN_7B, tmp_path)
    assert shape.parameters == 7_615_616_512 - 28 * (3584 + 2 * 512)


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "mlp.down_proj")])
def test_adapters_are_those_that_peft_makes(targets: str | tuple[str, ...], tmp_path: Path) -> None:
    from rapo_rllib.learner.adapters import Adapters

    lora = LoraSettings(rank=3, target_modules=targets)
    shape, model = read("llama", TINY, tmp_path)
    assert shape.adapters(lora) == sum(tensor.numel() for tensor in Adapters(model, lora).tensors().values())
    assert shape.adapters(None) == 0


def test_an_unknown_name_counts_as_the_largest_matrix(tmp_path: Path) -> None:
    shape, _ = read("llama", TINY, tmp_path)
    assert shape.adapters(LoraSettings(rank=3, target_modules=("gate_up_proj",))) == 3 * 3 * (12 + 8)
