"""A trial's files beside its results (transcripts, the batch that ended a training), and the name of its run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rapo_rllib.batching.training_batch import TrainingBatch, save_batch
from rapo_rllib.errors import NotFiniteError
from rapo_rllib.monitoring.transcripts import HELD_OUT, delete_transcripts, write_transcripts
from rapo_rllib.settings import Settings
from rapo_rllib.types import TrajectoryGroup


def trial_folder(algorithm: Any, name: str) -> tuple[str, Any]:
    """Return the path of a trial's folder and its file system: Tune's storage, as Tune's working directory is not kept."""
    storage = algorithm._storage  # Tune's ``StorageContext``; None outside Tune
    if storage is None:
        return f"{algorithm.logdir}/{name}", None
    return f"{storage.trial_fs_path}/{name}", storage.storage_filesystem


def write_trial_transcripts(algorithm: Any, groups: Sequence[TrajectoryGroup]) -> None:
    """Write this iteration's trajectories if ``transcripts`` is set, and delete files that are older than it keeps.

    Files of later iterations stay: after a restore from an earlier checkpoint, the run writes them anew.
    """
    settings: Settings = algorithm.settings
    if not (keep := settings.run.transcripts):
        return
    folder, filesystem = trial_folder(algorithm, "transcripts")
    iteration = algorithm.iteration + 1
    write_transcripts(folder, f"iteration_{iteration:05d}.jsonl", groups, filesystem, settings.objective)
    if keep is not True:
        delete_transcripts(folder, iteration - keep, filesystem)


def write_held_out(algorithm: Any, groups: Sequence[TrajectoryGroup], version: int) -> None:
    """Write the trajectories of an evaluation of the weights ``version``, if ``transcripts`` is set."""
    settings: Settings = algorithm.settings
    if settings.run.transcripts:
        folder, filesystem = trial_folder(algorithm, HELD_OUT)
        write_transcripts(folder, f"version_{version:05d}.jsonl", groups, filesystem, settings.objective)


def keep_not_finite(
    algorithm: Any, batch: TrainingBatch, groups: Sequence[TrajectoryGroup], error: NotFiniteError
) -> NotFiniteError:
    """Write the batch at which ``error`` was raised, and its trajectories; return the error with their places."""
    folder, filesystem = trial_folder(algorithm, "not_finite")
    name = f"iteration_{algorithm.iteration + 1:05d}"
    path = save_batch(folder, f"{name}.pt", batch, filesystem)
    write_transcripts(folder, f"{name}.jsonl", groups, filesystem, algorithm.settings.objective)
    return NotFiniteError(f"{error} The batch is in {path}, its trajectories are in {name}.jsonl beside it.")


@dataclass(frozen=True)
class RunName:
    """The unique name of a run, under which its grown traces are stored beside a Step-Trace Buffer.

    Under Tune a run is a trial: it keeps its id when it is resumed, and when it takes over another trial's checkpoint. Outside
    Tune only checkpoints keep the name, so a run that is restored from a checkpoint takes the name in it.
    """

    text: str
    tunes: bool = False  # given by Tune, and so never changed

    @property
    def in_milvus(self) -> str:
        """The run's name as part of a collection's name."""
        return re.sub(r"\W", "_", self.text, flags=re.ASCII)

    def get_state(self) -> str | None:
        """Return the name for checkpoints; None if Tune names the run."""
        return None if self.tunes else self.text

    def after(self, state: str | None) -> RunName:
        """Return the name of this run once it has read a checkpoint with ``state``."""
        return self if self.tunes or state is None else RunName(state)
