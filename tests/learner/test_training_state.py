"""The learners' state by torch distributed checkpoint, bit for bit; between numbers of learners: test_learners_together.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from tiny_learner import build, trajectory_groups
from tiny_models import save_tiny_model

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.errors import CheckpointError
from rapo_rllib.settings import ObjectiveSettings


def batch(count: int) -> TrainingBatch:
    return TrainingBatch.from_groups(trajectory_groups(count), ObjectiveSettings(), 2)


def weights(learner: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.policy.language_model.parameters()]


def entries(learner: Any) -> list[torch.Tensor]:
    (optimizer,) = learner._named_optimizers.values()
    return [values[name].clone() for values in optimizer.state_dict()["state"].values() for name in sorted(values)]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "precision", [{}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "master_weights": None}], ids=["fp32", "masters", "bf16"]
)
def test_a_restored_learner_goes_on_bit_for_bit(folder: Path, tmp_path: Path, precision: dict[str, Any]) -> None:
    learner, restored = build(folder, **precision), build(folder, **precision)
    learner.update(training_data=batch(4))
    learner.save_training_state(str(tmp_path))
    saved = weights(learner), entries(learner)
    expected = torch.rand(3)  # the next the generator gives
    for _ in range(3):  # newer than the checkpoint, and still it is restored
        restored.update(training_data=batch(2))
    restored.load_training_state(str(tmp_path), 0)
    assert torch.equal(torch.rand(3), expected)
    assert restored._weights_seq_no == 1
    assert equal(weights(restored), saved[0])
    assert equal(entries(restored), saved[1])
    for each in (learner, restored):
        each.update(training_data=batch(3))
    assert equal(weights(learner), weights(restored))
    assert equal(entries(learner), entries(restored))


@pytest.mark.parametrize("masters_first", [True, False])
def test_masters_and_float32_weights_are_the_same_thing(folder: Path, tmp_path: Path, masters_first: bool) -> None:
    with_masters, plain = build(folder, dtype="bfloat16"), build(folder)
    saved, restored = (with_masters, plain) if masters_first else (plain, with_masters)
    for _ in range(3):
        saved.update(training_data=batch(4))
    saved.save_training_state(str(tmp_path))
    restored.load_training_state(str(tmp_path), 0)
    (optimizer,) = with_masters._named_optimizers.values()
    masters = optimizer.param_groups[0]["params"]
    exact = [parameter.detach() for parameter in plain.policy.language_model.parameters()]
    assert equal([master.detach() for master in masters], exact)
    assert equal(weights(with_masters), [tensor.bfloat16() for tensor in exact])
    restored.update(training_data=batch(2))
    assert all(torch.equal(w, m.bfloat16()) for w, m in zip(weights(with_masters), masters, strict=True))


def test_before_the_first_step_there_is_nothing_of_the_optimiser(folder: Path, tmp_path: Path) -> None:
    fresh, other = build(folder), build(folder)
    fresh.save_training_state(str(tmp_path))
    other.update(training_data=batch(2))
    other.load_training_state(str(tmp_path), 0)
    assert entries(other) == []
    assert equal(weights(fresh), weights(other))


def test_the_learning_rate_follows_from_config_and_steps(folder: Path, tmp_path: Path) -> None:
    learner = build(folder, lr=[[0, 1e-3], [100, 0.0]])
    learner.update(training_data=batch(2), timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: 25})
    learner.save_training_state(str(tmp_path))
    scheduled, fixed = build(folder, lr=[[0, 1e-3], [100, 0.0]]), build(folder, lr=7e-4)
    for restored, expected in ((scheduled, 7.5e-4), (fixed, 7e-4)):
        restored.load_training_state(str(tmp_path), 25)
        (optimizer,) = restored._named_optimizers.values()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)


def test_skipped_steps_are_counted_on(folder: Path, tmp_path: Path) -> None:
    learner, restored = build(folder), build(folder)
    learner._skipped_in_a_row = 2
    learner.save_training_state(str(tmp_path))
    restored.load_training_state(str(tmp_path), 0)
    assert restored._skipped_in_a_row == 2


def test_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    build(folder).save_training_state(str(tmp_path / "state"))
    other = build(save_tiny_model(tmp_path / "other", "qwen2"))
    with pytest.raises(CheckpointError, match=r"not the same model: in config.json architectures is \['LlamaForCausalLM'\]"):
        other.load_training_state(str(tmp_path / "state"), 0)
