"""Metrics of an update by hand, and that no micro-batch reads the device: on the meta device every read raises."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from rapo_rllib.learner.metrics import UpdateMetrics
from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.objective.loss import policy_loss
from rapo_rllib.objective.loss_metrics import LossMetrics
from rapo_rllib.settings import ObjectiveSettings

ALONE = Ranks(torch.device("cpu"), False)


def loss_of(**numbers: float) -> LossMetrics:
    zeros = {field.name: torch.zeros(()) for field in fields(LossMetrics)}
    return LossMetrics(**zeros | {name: torch.tensor(value) for name, value in numbers.items()})


def test_rows_are_added_and_maxima_stay_maxima() -> None:
    """Two rows before the first step and one behind it: mismatch is that of the first two alone."""
    metrics = UpdateMetrics()
    rows = [loss_of(num_tokens=2, ratio_sum=2.0, ratio_max=1.2, mismatch_sum=0.2, mismatch_max=0.15),
            loss_of(num_tokens=2, ratio_sum=3.0, ratio_max=2.0, mismatch_sum=0.6, mismatch_max=0.5),
            loss_of(num_tokens=4, ratio_sum=3.0, ratio_max=0.9, mismatch_sum=9.0, mismatch_max=7.0)]  # fmt: skip
    for index, row in enumerate(rows):
        metrics.add_row(10, torch.tensor([1.0, 3.0]), row)
        if index:
            metrics.add_step(0.5 * index, 4.0)
    found = metrics.reduced(ALONE, 2.0)
    assert (found["ratio"], found["ratio_max"]) == (1.0, pytest.approx(2.0))
    assert found["mismatch"] == pytest.approx(0.2)
    assert found["mismatch_max"] == pytest.approx(0.5)
    assert found["entropy"] == pytest.approx(12 / 8)
    assert (found["num_micro_batches"], found["num_tokens_computed"], found["tokens_per_s"]) == (3, 30, 15)
    assert (found["total_loss"], found["gradient_norm"]) == (0.75, 4.0)


def test_an_update_of_nothing_is_all_zeros() -> None:
    assert set(UpdateMetrics().reduced(ALONE, 0.0).values()) == {0.0}


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_no_micro_batch_reads_the_device(level: str) -> None:
    """Loss, its gradient and its metrics on tensors without data, which could not be read."""
    names = [field.name for field in fields(LossInputs)]
    tensors = {name: torch.zeros(6, device="meta") for name in names}
    tensors["trajectory_ids"] = torch.zeros(6, dtype=torch.int64, device="meta")
    tensors["off_policy"] = torch.zeros(6, dtype=torch.bool, device="meta")
    tensors["logprobs"].requires_grad_()
    settings = ObjectiveSettings(importance_level=level, kl_coeff=0.1, importance_cap=2.0, dual_clip=3.0)
    outputs = policy_loss(LossInputs(**tensors), settings)
    outputs.loss.backward()
    metrics = UpdateMetrics()
    metrics.add_row(6, torch.zeros(6, device="meta"), outputs.metrics)
    with pytest.raises((NotImplementedError, RuntimeError)):  # here all of it is read, at once
        metrics.reduced(ALONE, 1.0)
