"""``--resume``: a run that was killed goes on where its newest complete checkpoints stand.

Tune notes every few seconds which trials there are and where their checkpoints lie. After a kill its last note may name a
checkpoint that has been deleted since, or miss newer ones, and so may its file of results; the folders themselves know better.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import typer
from ray.tune import Callback, Checkpoint, ResumeConfig

from rapo_rllib.checkpoint_folder import MANIFEST, RESULT, whole_checkpoints


def resume_config(experiment_folder: Path) -> ResumeConfig | None:
    """How Tune goes on with the run in this folder; None where there is none, or its trials had not begun."""
    notes = sorted(experiment_folder.glob("experiment_state-*.json"), key=lambda file: file.stat().st_mtime)
    if not notes or not json.loads(notes[-1].read_text())["trial_data"]:
        typer.echo(f"There is no run to resume in {experiment_folder}: starting a new one.")
        return None
    return ResumeConfig(errored=ResumeConfig.ResumeType.RESUME)  # type: ignore[arg-type]  # its annotation is wrong


class NewestCheckpoints(Callback):
    """Points every trial that goes on to its newest complete checkpoint, before it starts."""

    def __init__(self) -> None:
        self._done = False

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Tune looks for events; the first time no trial has started yet."""
        if not self._done:
            self._done = True
            for trial in trials:
                if not trial.is_finished():
                    _point(trial)


def _point(trial: Any) -> None:
    folder = Path(trial.path)
    taken = [int(path.name.rpartition("_")[2]) for path in folder.glob("checkpoint_*")]
    trial.storage.current_checkpoint_index = max(taken, default=-1)
    _cut_last_line(folder / "result.json")
    if not any(folder.glob(f"checkpoint_*/{MANIFEST}")):
        return  # of another algorithm, or none yet: as Tune has it
    kept = _register(trial, folder)
    typer.echo(f"[{trial}] goes on from {kept[-1]}" if kept else f"[{trial}] has no complete checkpoint: it starts again.")
    for path in folder.glob("checkpoint_*"):
        if path not in kept:
            shutil.rmtree(path)  # cut short


def _register(trial: Any, folder: Path) -> list[Path]:
    """Make Tune's list of checkpoints anew: the complete ones, the furthest last, each with the result it was written after.

    Results that Tune had not copied to the trial's folder yet are in the checkpoints, and added to its file.
    """
    from ray.train._internal.checkpoint_manager import _CheckpointManager, _TrainingResult

    file, kept = folder / "result.json", whole_checkpoints(folder)
    lines = file.read_text().splitlines() if file.exists() else []
    results = {result["training_iteration"]: result for result in map(json.loads, lines)}
    manager = _CheckpointManager(trial.run_metadata.checkpoint_manager.checkpoint_config)
    with file.open("a") as noted:
        for path in kept:
            iteration = json.loads((path / MANIFEST).read_text())["iteration"]
            if iteration not in results:
                results[iteration] = json.loads((path / RESULT).read_text())
                noted.write(json.dumps(results[iteration]) + "\n")
            manager.register_checkpoint(_TrainingResult(Checkpoint.from_directory(path), results[iteration]))
    trial.run_metadata.checkpoint_manager = manager
    return kept


def _cut_last_line(file: Path) -> None:
    """Drop what follows the last end of a line: it was being written when the run was killed."""
    if file.exists():
        content = file.read_bytes()
        file.write_bytes(content[: content.rfind(b"\n") + 1])
