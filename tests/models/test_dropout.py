"""A model's own dropout is off in the learner: the engine samples without it, and the ratio compares the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_learner import TinyConfig, trajectory_groups
from tiny_models import VOCABULARY, random_groups
from transformers import AutoConfig, AutoModelForCausalLM

from rapo_rllib import RAPOConfig
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.learner.rl_module import ROW, CausalLMRLModule
from rapo_rllib.models.loading import load_causal_lm, save_causal_lm, silence, zero_randomness
from rapo_rllib.settings import ModelSettings, ObjectiveSettings

COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
MODELS: dict[str, dict[str, Any]] = {  # each with randomness that another does not have; kinds whose defaults drop 0.1
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "opt": {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "llama": {
        **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
        "attention_dropout": 0.3,
    },
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp(request.param), request.param)


def save(folder: Path, kind: str) -> str:
    extra = {"layerdrop": 0.5} if kind in ("opt", "xglm") else {}
    config = AutoConfig.for_model(kind, **COMMON, **MODELS[kind], **extra)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_passes_are_those_of_evaluation(model: str, checkpointing: bool) -> None:
    settings = {"name_or_path": model, "autocast_dtype": None, "gradient_checkpointing": checkpointing}
    module = CausalLMRLModule(model_config={"settings": RAPOConfig().training(model=settings).settings})
    (row,) = pack_rows(random_groups([(5, [6, 4])]), max_tokens=100)
    trained = [module.forward_train({ROW: row})["logprobs"] for _ in range(2)]
    module.language_model.eval()
    with torch.no_grad():
        evaluated = module._forward({ROW: row})["logprobs"]
    for logprobs in trained:
        torch.testing.assert_close(logprobs.detach(), evaluated, rtol=0, atol=1e-6)


def test_the_ratio_is_one_at_learning_rate_zero(tmp_path: Path) -> None:
    config = TinyConfig(Path(save(tmp_path, "gpt2")), old_logprobs="learner", lr=0.0, num_epochs=2)
    learner = RAPOTorchLearner(config=config, module_spec=config.get_multi_rl_module_spec())
    learner.build()
    results = learner.update(training_data=TrainingBatch.from_groups(trajectory_groups(), ObjectiveSettings(), 2))
    assert float(results["default_policy"]["ratio_max"].peek()) == pytest.approx(1.0, abs=1e-5)


def test_a_saved_model_keeps_the_dropout_of_its_config(tmp_path: Path) -> None:
    model = load_causal_lm(ModelSettings(name_or_path=save(tmp_path / "model", "opt")))
    assert model.config.dropout == model.config.layerdrop == 0
    save_causal_lm(model, str(tmp_path / "saved"))
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (saved["dropout"], saved["layerdrop"]) == (0.1, 0.5) and "configured" not in saved
    assert model.config.dropout == model.config.layerdrop == 0, "the model that goes on training has none"


def test_parts_of_a_config_count_too() -> None:
    config = AutoConfig.for_model("gemma3")
    config.text_config.attention_dropout = 0.2
    zero_randomness(config)
    assert config.text_config.attention_dropout == 0


def test_layers_that_ignore_the_config_are_silenced() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Dropout2d(0.5)).train()
    silence(model)
    values = torch.ones(2, 4, 4)
    assert torch.equal(model(values), model(values))
