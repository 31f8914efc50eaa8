"""bfloat16 weights with float32 masters move where bfloat16 alone stands still, and resume exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_learner import TinyConfig, trajectory_groups
from tiny_models import save_tiny_model

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.learner.master_weights import MasterWeightAdamW
from rapo_rllib.settings import ObjectiveSettings


def weight(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.full((3,), value, dtype=torch.bfloat16))


def test_steps_smaller_than_bfloat16_can_tell_add_up() -> None:
    plain, mastered = weight(), weight()
    optimizers = [torch.optim.AdamW([plain], lr=1e-3), MasterWeightAdamW([mastered], lr=1e-3)]
    for _ in range(10):  # near 1 bfloat16 numbers are 2^-8 apart below: ten steps of 0.001 are two or three of them
        for parameter, optimizer in zip((plain, mastered), optimizers, strict=True):
            parameter.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert plain.tolist() == [1.0] * 3
    assert mastered.tolist() == pytest.approx([0.99] * 3, abs=2**-8)
    assert optimizers[1].param_groups[0]["params"][0].tolist() == pytest.approx([0.99] * 3, abs=2e-4)


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    parameter = weight()
    optimizer = MasterWeightAdamW([parameter])
    (master,) = optimizer.param_groups[0]["params"]
    for scale in (1.0, *[2.0**-9] * 4):  # in bfloat16, 1 + 2^-9 is 1
        (parameter * scale).sum().backward()
    assert parameter.grad is None and master.grad.tolist() == [1 + 4 * 2.0**-9] * 3
    optimizer.zero_grad()
    assert master.grad is None


def test_a_weight_that_others_wrote_is_the_truth() -> None:
    """The old master does not come back."""
    parameter = weight()
    optimizer = MasterWeightAdamW([parameter], lr=1e-3)
    parameter.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        parameter.fill_(7.0)
    optimizer.step()
    assert parameter.tolist() == [7.0] * 3  # no gradient, no step


@pytest.mark.parametrize("master_weights", ["float32", None])
def test_learner_steps_on_masters_if_told_to(tmp_path: Path, master_weights: str | None) -> None:
    folder = save_tiny_model(tmp_path)
    config = TinyConfig(folder, dtype="bfloat16", master_weights=master_weights, lr=1e-5, grad_clip=1.0)
    learner = RAPOTorchLearner(config=config, module_spec=config.get_multi_rl_module_spec())
    learner.build()
    before = [p.clone() for p in learner.policy.parameters()]
    batch = TrainingBatch.from_groups(trajectory_groups(), ObjectiveSettings())
    for _ in range(20):
        learner.update(training_data=batch)
    (optimizer,) = learner._named_optimizers.values()
    parameters = list(learner.policy.parameters())
    assert all(p.dtype == torch.bfloat16 for p in parameters)
    moved = sum(float((a != b).float().mean()) for a, b in zip(before, parameters, strict=True)) / len(parameters)
    held = optimizer.param_groups[0]["params"]
    assert {p.dtype for p in held} == {torch.float32 if master_weights else torch.bfloat16}
    if master_weights:
        assert all(torch.equal(p, m.bfloat16()) for p, m in zip(parameters, held, strict=True)) and moved > 0
        exact = sum(float((a.float() != m).float().mean()) for a, m in zip(before, held, strict=True)) / len(held)
        assert exact > 0.9 > moved  # nearly all masters moved, most of them less than their weight can show
