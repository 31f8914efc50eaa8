"""Models that learner and engine would not compute alike are refused before anything starts, with their name and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rapo_rllib import RAPOConfig
from rapo_rllib.models.trainable import check_trainable, untrainable
from rapo_rllib.settings import ModelSettings

EXPERTS = ("qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "deepseek_v3", "gpt_oss", "glm4_moe", "phimoe", "llama4")
DENSE = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "smollm3",
    "gpt2",
    "granite",
    "cohere2",
)


def saved(folder: Path, kind: str, **values: Any) -> ModelSettings:
    AutoConfig.for_model(kind, **values).save_pretrained(folder)
    return ModelSettings(str(folder))


@pytest.mark.parametrize("kind", EXPERTS)
def test_mixtures_of_experts(kind: str) -> None:
    assert untrainable(AutoConfig.for_model(kind)).startswith("is a mixture of experts (")


@pytest.mark.parametrize("kind", DENSE)
def test_dense_models_of_texts(kind: str) -> None:
    assert kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    assert untrainable(AutoConfig.for_model(kind)) == ""


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "gemma3", "mllama", "llava"])
def test_models_of_images(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ValueError, match=rf"has parts for more than texts \(model_type '{kind}'\)\. Name a dense, unquantised"):
        check_trainable(saved(tmp_path, kind))


def test_quantised_files(tmp_path: Path) -> None:
    settings = saved(tmp_path, "llama", quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    with pytest.raises(ValueError, match="is quantised"):
        check_trainable(settings)


def test_what_predicts_no_tokens(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"is no language model that transformers can build \(Unrecognized configuration class"
    ):
        check_trainable(saved(tmp_path, "vit"))


@pytest.mark.parametrize("effect", [{"return_value": None}, {"side_effect": NotImplementedError}], ids=str)
def test_what_does_not_tell_its_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: dict[str, Any]) -> None:
    monkeypatch.setattr("transformers.LlamaForCausalLM.get_input_embeddings", Mock(**effect))
    with pytest.raises(ValueError, match=r"does not tell its input embeddings.* get_input_embeddings\(\) to LlamaForCausalLM"):
        check_trainable(saved(tmp_path, "llama"))


def test_the_packaged_model_and_the_job_that_names_another(tmp_path: Path) -> None:
    check_trainable(ModelSettings())
    model = {"name_or_path": saved(tmp_path, "qwen3_moe").name_or_path}
    with pytest.raises(ValueError, match="is a mixture of experts"):
        RAPOConfig().environment("rapo/word_problems").training(model=model, num_hybrid=0).preflight()
