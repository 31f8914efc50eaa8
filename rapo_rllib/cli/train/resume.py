"""``--resume``: a run that was killed or interrupted goes on where its newest complete checkpoints stand.

    resume_config(folder, criteria): Tune's last note --each trial as its own folder has it--> what Tune goes on with

Tune notes every few seconds which trials there are and where their checkpoints lie. After a kill its last note may name a
checkpoint that has been deleted since, miss newer ones, or miss that a trial had ended, and so may its file of results; the
folders themselves know better. After Ctrl-C the note calls trials finished that are not.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer
from ray import cloudpickle
from ray.tune import Checkpoint, ResumeConfig
from ray.tune.experiment import Trial

from rapo_rllib.checkpoints.folder import MANIFEST, RESULT, replace_file, strangers, whole_checkpoints
from rapo_rllib.cli.train.interrupt import reaches
from rapo_rllib.services.json_files import parsed, read_json

# of the process that ended, and Tune would take them for its own: the stopper with its Ctrl-C, decisions
# about results that are not in a checkpoint
_OF_ITS_PROCESS = ("_stopper", "_cached_trial_decisions", "_queued_trial_decisions")

_NOTE = {"trial_data": [[str]], "runner_data": dict}
_RESULT = {"training_iteration": int}
_NAME = re.compile(r"checkpoint_(\d{6,})")


def resume_config(experiment_folder: Path, criteria: Mapping[str, float]) -> ResumeConfig | None:
    """Make Tune resume the run in this folder, by its last note, which is corrected; None where there is no run yet.

    Args:
        experiment_folder: of the run.
        criteria: numbers of a result; a trial has ended where any is reached, or where it said itself that it is done.

    Raises:
        ValueError: the note or a file of results is damaged; names it.
    """
    notes = sorted(experiment_folder.glob("experiment_state-*.json"))
    try:
        note = read_json(notes[-1], _NOTE) if notes else {}
    except ValueError as error:  # Tune writes it in place, and a full disk cuts it short
        whole = [str(path) for trial in sorted(experiment_folder.glob("*/")) for path in whole_checkpoints(trial)[-1:]]
        way = f"--restore {' or '.join(whole)} goes on" if whole else "no trial has a complete checkpoint, so start anew"
        raise ValueError(f"{error}; in place of --resume: {way}") from error
    if not notes or not note["trial_data"]:
        typer.echo(f"There is no run to resume in {experiment_folder}: starting a new one.")
        return None
    interrupted = _interrupted(note)
    trials = [_restored(state, metadata, experiment_folder) for state, metadata in note["trial_data"]]
    for trial in trials:
        if trial.status != Trial.TERMINATED or trial.trial_id in interrupted:
            _go_on(trial, Path(str(trial.path)), criteria)
    note["trial_data"] = [trial.get_json_state() for trial in trials]
    note["runner_data"] = {key: value for key, value in note["runner_data"].items() if key not in _OF_ITS_PROCESS}
    replace_file(notes[-1], json.dumps(note).encode())
    _go_on_sampling(experiment_folder)
    return ResumeConfig()


def _interrupted(note: Mapping[str, Any]) -> set[str]:
    """List the trials that Ctrl-C ended: known to the stopper, which Tune pickles into its note."""
    from ray.tune.utils.serialization import TuneFunctionDecoder

    noted = json.dumps(note["runner_data"].get("_stopper"))
    stopper = TuneFunctionDecoder(allow_cloudpickle=True).decode(noted)  # type: ignore[no-untyped-call]
    return set(getattr(stopper, "interrupted", ()))


def _restored(state: str, metadata: str, experiment_folder: Path) -> Any:
    """Restore a tuner as Tune does it; the experiment's folder may have been moved."""
    trial: Any = Trial.from_json_state(state)
    trial.restore_run_metadata(metadata)
    storage = copy.copy(trial.storage)
    storage.storage_fs_path, storage.experiment_dir_name = str(experiment_folder.parent), experiment_folder.name
    trial.set_storage(storage)
    return trial


def _go_on(trial: Any, folder: Path, criteria: Mapping[str, float]) -> None:
    """Point a trial to its newest complete checkpoint, and let it run unless that is its end."""
    checkpoints = _checkpoints(folder)
    trial.storage.current_checkpoint_index = max(checkpoints.values(), default=-1)  # a new one goes where there never was one
    _drop_half_line(folder / "result.json")
    if any((path / MANIFEST).is_file() for path in checkpoints):  # else of another algorithm, or none yet: as Tune has it
        kept = _register(trial, folder, [path for path in whole_checkpoints(folder) if path in checkpoints])
        _delete_cut_short([path for path in checkpoints if path not in kept], checkpoints)
    newest = trial.run_metadata.checkpoint_manager.latest_checkpoint_result
    if newest is not None and (newest.metrics.get("done") or reaches(newest.metrics, criteria)):
        typer.echo(f"[{trial}] has ended with {newest.checkpoint.path}")
        trial.run_metadata.last_result = newest.metrics
        trial.set_status(Trial.TERMINATED)
        return
    begin = "has no complete checkpoint: it starts" if newest is None else f"continues from {newest.checkpoint.path}"
    typer.echo(f"[{trial}] {begin}")
    trial.set_status(Trial.PENDING)


def _checkpoints(folder: Path) -> dict[Path, int]:
    """Return the folders with exactly the name that Tune gives a checkpoint, each with its number; others are not ours."""
    named = [(path, _NAME.fullmatch(path.name)) for path in sorted(folder.glob("checkpoint_*"))]
    return {path: int(match[1]) for path, match in named if match and path.is_dir() and not path.is_symlink()}


def _drop_half_line(results: Path) -> None:
    """Drop what follows the last end of a line: it was being copied when the run was killed."""
    content = results.read_bytes() if results.exists() else b""
    if content and not content.endswith(b"\n"):
        replace_file(results, content[: content.rfind(b"\n") + 1])


def _delete_cut_short(unfinished: Iterable[Path], checkpoints: Collection[Path]) -> None:
    """Delete checkpoints that were cut short, but no folder that holds anything that a checkpoint does not."""
    for path in unfinished:
        if strange := strangers(path, checkpoints):
            typer.echo(f"{path} is no complete checkpoint; it stays, because it holds {strange[0]}, which is not of one")
        else:
            shutil.rmtree(path)


def noted(results: Path) -> set[int]:
    """Read which iterations a file of results has. Raises ``ValueError`` that names a file which is damaged."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {parsed(line, _RESULT, str(results))["training_iteration"] for line in lines}


def _register(trial: Any, folder: Path, kept: list[Path]) -> list[Path]:
    """Make Tune's list of checkpoints anew: of ``kept``, the furthest last, each with the result it was written after.

    Results of theirs that the trial's file lacks are added to it.
    """
    from ray.train._internal.checkpoint_manager import _CheckpointManager, _TrainingResult

    file = folder / "result.json"
    known = noted(file)
    manager = _CheckpointManager(trial.run_metadata.checkpoint_manager.checkpoint_config)
    for path in kept:
        result = read_json(path / RESULT, _RESULT)
        if result["training_iteration"] not in known:
            with file.open("a") as results:
                results.write(json.dumps(result) + "\n")
        manager.register_checkpoint(_TrainingResult(Checkpoint.from_directory(path), result))
    trial.run_metadata.checkpoint_manager = manager
    return kept


def _go_on_sampling(experiment_folder: Path) -> None:
    """Let trials of a sweep that were not made yet come; Ctrl-C had told Tune that there are no more."""
    states = sorted(experiment_folder.glob("basic-variant-state-*.json"))
    if states:
        state = cloudpickle.loads(states[-1].read_bytes())
        replace_file(states[-1], cloudpickle.dumps({**state, "_finished": False}))
