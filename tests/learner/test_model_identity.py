"""A checkpoint is taken by the model that it was made with alone, though others have weights of the same names and shapes."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_learner import build, trajectory_groups

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.errors import CheckpointError
from rapo_rllib.learner.identity import IDENTITY, check_identity, write_identity
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.settings import LoraSettings, ModelSettings, ObjectiveSettings

LORA: dict[str, Any] = {"lora": LoraSettings(rank=4)}


def trained(folder: Path, **settings: Any) -> RAPOTorchLearner:
    learner = build(folder, **settings)
    for _ in range(2):
        learner.update(training_data=TrainingBatch.from_groups(trajectory_groups(2), ObjectiveSettings()))
    return learner


@pytest.fixture(scope="module")
def whole_state(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Saved after some steps."""
    return saved(folder, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def lora_state(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(folder, tmp_path_factory.mktemp("lora"), **LORA)


def saved(folder: Path, state: Path, **settings: Any) -> str:
    trained(folder, **settings).save_training_state(str(state))
    return str(state)


def weights(learner: RAPOTorchLearner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.policy.weights().items()}


def test_adapters_over_another_base_are_refused_and_nothing_is_changed(folder: Path, lora_state: str, tmp_path: Path) -> None:
    other = build(shutil.copytree(folder, tmp_path / "other"), **LORA)
    before = weights(other)
    with pytest.raises(CheckpointError, match="not the same model: LoRA and kl_coeff need the model that") as raised:
        other.load_training_state(lora_state, 0)
    assert repr(str(folder)) in str(raised.value) and repr(str(tmp_path / "other")) in str(raised.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(other).items()) and other._weights_seq_no == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_base_elsewhere_and_in_another_precision_is_the_same(
    folder: Path, lora_state: str, tmp_path: Path, dtype: str
) -> None:
    learner = build(folder, **LORA)
    learner.load_training_state(lora_state, 0)
    other = build(shutil.copytree(folder, tmp_path / folder.name), dtype=dtype, **LORA)
    before, expected = weights(other), weights(learner)
    other.load_training_state(lora_state, 0)
    assert not all(torch.equal(tensor, before[name]) for name, tensor in weights(other).items())
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(other).items())


def test_the_reference_model_must_be_the_one_of_before(folder: Path, whole_state: str, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    with pytest.raises(CheckpointError, match="LoRA and kl_coeff need the model that training started from"):
        build(other, kl_coeff=0.1).load_training_state(whole_state, 0)
    build(folder, kl_coeff=0.1).load_training_state(whole_state, 0)
    build(other).load_training_state(whole_state, 0)  # without a reference there is nothing to compare


@pytest.mark.parametrize("settings", [{}, LORA], ids=["whole", "lora"])
@pytest.mark.parametrize(("key", "value"), [("rms_norm_eps", 0.1), ("hidden_act", "gelu"), ("model_type", "mistral")])
def test_a_model_that_computes_otherwise_is_refused(
    folder: Path, whole_state: str, lora_state: str, tmp_path: Path, settings: dict[str, Any], key: str, value: Any
) -> None:
    """Its weights have the same names, shapes and values."""
    shutil.copytree(folder, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(CheckpointError, match=rf"not the same model: in config.json {key} is .*, here {value!r}"):
        build(tmp_path / "other", **settings).load_training_state(lora_state if settings else whole_state, 0)


def test_what_means_nothing_to_the_weights_may_differ(folder: Path, whole_state: str, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    harmless = {
        "transformers_version": "4.0",
        "attention_dropout": 0.1,
        "use_cache": False,
        "dtype": "float16",
        "eos_token_id": 3,
    }
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, **harmless}))
    build(tmp_path / "other").load_training_state(whole_state, 0)


def test_a_checkpoint_that_does_not_say_its_model_is_refused(folder: Path, lora_state: str, tmp_path: Path) -> None:
    state = shutil.copytree(lora_state, tmp_path / "state")
    (state / IDENTITY).unlink()
    with pytest.raises(CheckpointError, match=r"does not say which model it belongs to: .*model\.json"):
        build(folder, **LORA).load_training_state(str(state), 0)


def test_what_means_nothing_may_differ_in_a_part_of_a_config_too(tmp_path: Path) -> None:
    """Models of several modalities have a ``text_config``, with the precision that it is loaded in."""

    def config(**changed: Any) -> SimpleNamespace:
        values = {"model_type": "gemma3", "text_config": {"hidden_size": 8, "dtype": "float32", "use_cache": True} | changed}
        return SimpleNamespace(to_dict=lambda: values)

    write_identity(str(tmp_path), ModelSettings("m"), config())
    check_identity(str(tmp_path), ModelSettings("m"), config(dtype="bfloat16", use_cache=False), needs_base=True)
    with pytest.raises(CheckpointError, match=r"in config\.json text_config is"):
        check_identity(str(tmp_path), ModelSettings("m"), config(hidden_size=16), needs_base=True)


@pytest.mark.parametrize(("name", "refused"), [("/elsewhere/m", False), ("others/m", False), ("/elsewhere/other", True)])
def test_a_base_is_known_by_the_last_part_of_its_name(tmp_path: Path, name: str, refused: bool) -> None:
    config: Any = SimpleNamespace(to_dict=dict)
    write_identity(str(tmp_path), ModelSettings("org/m"), config)
    with pytest.raises(CheckpointError, match="need the model that") if refused else nullcontext():
        check_identity(str(tmp_path), ModelSettings(name), config, needs_base=True)
