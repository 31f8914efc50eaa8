"""Trajectories to imitate, as batches of the learner: each of their trained tokens has the same weight.

Trajectory (x some) --imitation_batch--> ImitationBatch --LearnerGroup.update--> one optimiser step per minibatch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rapo_rllib.batching.samples import Sample, SampleGroup
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.types import TRAINED_KINDS, Trajectory


@dataclass(frozen=True)
class ImitationBatch(TrainingBatch):
    """One minibatch whose tokens are made likelier, whatever came of them: the mean of ``-log p`` over them, nats."""

    lr: float = 0.0


def imitation_batch(trajectories: Sequence[Trajectory], lr: float) -> ImitationBatch:
    """The batch of one optimiser step.

    Args:
        trajectories: with the kinds of their tokens; only trained ones count.
        lr: of the step.

    Raises:
        ValueError: none of them has a token to train on.
    """
    total = sum(trajectory.num_trained for trajectory in trajectories)
    if not total:
        raise ValueError("there is nothing to imitate: no trajectory has a token that its author wrote")
    groups = tuple(_group(trajectory, 1.0 / total) for trajectory in trajectories if trajectory.num_trained)
    return ImitationBatch(minibatches=(groups,), lr=lr)


def _group(trajectory: Trajectory, weight: float) -> SampleGroup:
    mask = np.isin(np.array(trajectory.kinds), TRAINED_KINDS)
    nothing = np.zeros(len(mask), dtype=np.float32)
    sample = Sample(np.array(trajectory.token_ids, dtype=np.int32), mask, nothing, nothing, 0.0, weight)
    return SampleGroup(
        np.array(trajectory.prompt_ids, dtype=np.int32), (sample,), trajectory.question_id, len(trajectory.steps)
    )
