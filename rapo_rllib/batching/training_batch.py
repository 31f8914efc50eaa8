"""The batch of one training step, in the form that RLlib's ``LearnerGroup.update(training_data=...)`` takes.

    TrajectoryGroup (all of a step) --from_groups--> TrainingBatch --shard--> one TrainingBatch per learner

RLlib's own sharding cuts episodes into equal slices; here groups stay whole and are balanced by tokens. An ``ImitationBatch``
is the batch of a warm start.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from rapo_rllib.batching.samples import Sample, SampleGroup, sample_groups
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import TRAINED_KINDS, Trajectory, TrajectoryGroup


@dataclass(frozen=True)
class TrainingBatch:
    """Whole sample groups, already divided among optimiser steps; pickled as numpy arrays.

    Example: groups of 900, 500, 400 and 100 tokens, ``num_minibatches=2``: minibatches ``[900, 400]`` and ``[500, 100]``; for
    two learners the shards are ``[[900], [500]]`` and ``[[400], [100]]``.
    """

    minibatches: tuple[tuple[SampleGroup, ...], ...]  # one optimiser step each, on every learner
    statistics: dict[str, float] = field(default_factory=dict)  # metrics of the whole batch, even in a shard

    @classmethod
    def from_groups(
        cls, groups: Sequence[TrajectoryGroup], objective: ObjectiveSettings, num_minibatches: int = 1
    ) -> TrainingBatch:
        """Compute advantages and weights over all groups, then divide those with signal among ``num_minibatches`` steps.

        With fewer groups than minibatches, there are fewer steps; without a group, none. A weight is a token's share of the
        mean over the batch, times the number of minibatches, so that each step estimates the same mean.
        """
        samples, statistics = sample_groups(groups, objective)
        count = min(num_minibatches, len(samples))
        samples = [_weighted(group, float(count)) for group in samples]
        return cls(tuple(tuple(samples[start::count]) for start in range(count)), statistics)

    @property
    def groups(self) -> list[SampleGroup]:
        """All groups, of all minibatches."""
        return [group for minibatch in self.minibatches for group in minibatch]

    def validate(self) -> None:
        """Do nothing, as RLlib's interface allows: a ``TrainingBatch`` is valid by construction."""

    def solve_refs(self) -> None:
        """Do nothing, as RLlib's interface allows: there are no object references to fetch."""

    def shard(
        self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any
    ) -> list[tuple[TrainingBatch, dict[str, Any]]]:
        """Split the batch, one part per learner with the same number of minibatches; a part of a minibatch may be empty.

        Largest group first: each group goes to the learner with the fewest tokens so far.
        """
        parts: list[list[tuple[SampleGroup, ...]]] = [[] for _ in range(num_shards)]
        for minibatch in self.minibatches:
            bins: list[list[SampleGroup]] = [[] for _ in range(num_shards)]
            loads = [0] * num_shards
            for group in sorted(minibatch, key=lambda g: -g.num_tokens):
                lightest = loads.index(min(loads))
                bins[lightest].append(group)
                loads[lightest] += group.num_tokens
            for part, groups in zip(parts, bins, strict=True):
                part.append(tuple(groups))
        return [(replace(self, minibatches=tuple(part)), {}) for part in parts]


def _weighted(group: SampleGroup, factor: float) -> SampleGroup:
    return replace(group, samples=tuple(replace(sample, weight=sample.weight * factor) for sample in group.samples))


def save_batch(folder: str, name: str, batch: TrainingBatch, filesystem: Any = None) -> str:
    """Write a batch, to be read by ``torch.load(path, weights_only=False)`` for ``learner.update(training_data=...)``.

    Args:
        folder: to write into; made if it is missing.
        name: of the file.
        batch: of all learners.
        filesystem: a ``pyarrow.fs.FileSystem``, e.g. the one that Tune stores trials on; None: this machine's.

    Returns:
        The path of the file.
    """
    from pyarrow.fs import LocalFileSystem

    filesystem = filesystem or LocalFileSystem()
    filesystem.create_dir(folder, recursive=True)
    buffer, path = io.BytesIO(), f"{folder}/{name}"
    torch.save(batch, buffer)
    with filesystem.open_output_stream(path) as file:
        file.write(buffer.getbuffer())
    return path


@dataclass(frozen=True)
class ImitationBatch(TrainingBatch):
    """One minibatch to imitate, whatever its rewards: the loss is the mean of ``-log p`` over its trained tokens, nats."""

    lr: float = 0.0


def imitation_batch(trajectories: Sequence[Trajectory], lr: float) -> ImitationBatch:
    """Build the batch of one optimiser step of imitation.

    Args:
        trajectories: to imitate; only tokens of trained kinds count.
        lr: of the step.

    Raises:
        ValueError: no trajectory has a token to train on.
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
