"""``--resume``: a run that was killed or interrupted goes on where its newest complete checkpoints stand.

    resume_config(folder, criteria): Tune's last note --correct each trial by its own folder--> the note that Tune resumes from

Tune notes every few seconds which trials there are and where their checkpoints lie. After a kill the last note may name a
checkpoint that has been deleted since, or lack newer ones or the end of a trial, and a trial's file of results may lack its
last results. The folders have the truth. After Ctrl-C the note calls trials finished that are not.
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

# entries about the process that ended, which Tune would restore: the stopper, which remembers Ctrl-C, and decisions about
# results that are not in a checkpoint
_OF_ITS_PROCESS = ("_stopper", "_cached_trial_decisions", "_queued_trial_decisions")

_NOTE = {"trial_data": [[str]], "runner_data": dict}
_RESULT = {"training_iteration": int}
_NAME = re.compile(r"checkpoint_(\d{6,})")


def resume_config(experiment_folder: Path, criteria: Mapping[str, float]) -> ResumeConfig | None:
    """Correct the last note of the run in this folder, and make Tune resume from it; None if there is no run yet.

    Args:
        experiment_folder: of the run.
        criteria: of stopping; a trial has ended if the result of its newest checkpoint reaches any, or says that it is done.

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
    """Read the ids of the trials that Ctrl-C ended from the stopper, which Tune pickles into its note."""
    from ray.tune.utils.serialization import TuneFunctionDecoder

    noted = json.dumps(note["runner_data"].get("_stopper"))
    stopper = TuneFunctionDecoder(allow_cloudpickle=True).decode(noted)  # type: ignore[no-untyped-call]
    return set(getattr(stopper, "interrupted", ()))


def _restored(state: str, metadata: str, experiment_folder: Path) -> Any:
    """Restore a trial as Tune does, in the present folder of the experiment, which may have been moved."""
    trial: Any = Trial.from_json_state(state)
    trial.restore_run_metadata(metadata)
    storage = copy.copy(trial.storage)
    storage.storage_fs_path, storage.experiment_dir_name = str(experiment_folder.parent), experiment_folder.name
    trial.set_storage(storage)
    return trial


def _go_on(trial: Any, folder: Path, criteria: Mapping[str, float]) -> None:
    """Point a trial to its newest complete checkpoint, and mark it as pending, or as terminated if it ended there."""
    checkpoints = _checkpoints(folder)
    trial.storage.current_checkpoint_index = max(checkpoints.values(), default=-1)  # the next one gets a new number
    _drop_half_line(folder / "result.json")
    if any((path / MANIFEST).is_file() for path in checkpoints):  # else of another algorithm, or none yet: Tune's note stays
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
    """Find the folders named exactly as Tune names checkpoints, each with its number; other folders are not ours."""
    named = [(path, _NAME.fullmatch(path.name)) for path in sorted(folder.glob("checkpoint_*"))]
    return {path: int(match[1]) for path, match in named if match and path.is_dir() and not path.is_symlink()}


def _drop_half_line(results: Path) -> None:
    """Drop an incomplete last line, which was being copied when the run was killed."""
    content = results.read_bytes() if results.exists() else b""
    if content and not content.endswith(b"\n"):
        replace_file(results, content[: content.rfind(b"\n") + 1])


def _delete_cut_short(unfinished: Iterable[Path], checkpoints: Collection[Path]) -> None:
    """Delete checkpoints that were cut short, except folders that also hold a file which belongs to no checkpoint."""
    for path in unfinished:
        if strange := strangers(path, checkpoints):
            typer.echo(f"{path} is no complete checkpoint; it stays, because it holds {strange[0]}, which is not of one")
        else:
            shutil.rmtree(path)


def noted(results: Path) -> set[int]:
    """Read the numbers of the iterations in a file of results. Raises ``ValueError``, naming the file, if it is damaged."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {parsed(line, _RESULT, str(results))["training_iteration"] for line in lines}


def _register(trial: Any, folder: Path, kept: list[Path]) -> list[Path]:
    """Rebuild Tune's list of checkpoints from ``kept``, the furthest trained last, each with the result it was written after.

    Results of these checkpoints that the trial's file of results lacks are added to the file.
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
    """Let Tune make the trials of a sweep that it has not made yet; Ctrl-C had told it that there are no more."""
    states = sorted(experiment_folder.glob("basic-variant-state-*.json"))
    if states:
        state = cloudpickle.loads(states[-1].read_bytes())
        replace_file(states[-1], cloudpickle.dumps({**state, "_finished": False}))
