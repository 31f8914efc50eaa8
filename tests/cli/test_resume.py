"""Which trials go on, and from which checkpoint, whatever Tune noted last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.train._internal.checkpoint_manager import _TrainingResult
from ray.train._internal.storage import StorageContext
from ray.tune import Checkpoint, CheckpointConfig, Trainable, register_trainable
from ray.tune.experiment import Trial
from ray.tune.search import BasicVariantGenerator
from ray.tune.utils.serialization import TuneFunctionEncoder

from rapo_rllib.checkpoints.folder import atomic_directory
from rapo_rllib.cli.train.interrupt import Interruption, TrialStopper
from rapo_rllib.cli.train.resume import resume_config

NOTE = "experiment_state-2026-01-01_00-00-00.json"


class Run:
    """An experiment's folder with one trial, its checkpoints and results, and Tune's note of them."""

    def __init__(self, folder: Path, iterations: Sequence[int], results: Sequence[int], status: str = "RUNNING") -> None:
        register_trainable("Job", Trainable)
        self.folder = folder / "job"
        storage = StorageContext(storage_path=str(folder), experiment_dir_name="job", trial_dir_name="trial")
        self.trial = Trial("Job", storage=storage, checkpoint_config=CheckpointConfig(num_to_keep=2))
        self.trial.create_placement_group_factory()
        self.trial.set_status(status)
        self.trial_folder = self.folder / "trial"
        self.trial_folder.mkdir(parents=True)
        for iteration in iterations:
            with atomic_directory(self.checkpoint(iteration), iteration=iteration) as partial:
                (partial / "w").write_text("weights")
                (partial / "result.json").write_text(json.dumps(result(iteration)))
        (self.trial_folder / "result.json").write_text("".join(json.dumps(result(i)) + "\n" for i in results))
        deleted = Checkpoint.from_directory(self.checkpoint(1))
        self.trial.run_metadata.checkpoint_manager.register_checkpoint(_TrainingResult(deleted, result(1)))
        self.stopper = TrialStopper({}, Interruption())

    def checkpoint(self, iteration: int) -> Path:
        return self.trial_folder / f"checkpoint_{iteration - 1:06d}"

    def resumed(self, criteria: dict[str, float] | None = None, folder: Path | None = None) -> Any:
        """The trial as Tune reads it from the note after a kill."""
        folder = folder or self.folder
        runner_data = {"_stopper": self.stopper, "_cached_trial_decisions": {"a": "STOP"}, "_total_time": 7.0}
        note = {"trial_data": [self.trial.get_json_state()], "runner_data": runner_data}
        (folder / NOTE).write_text(json.dumps(note, cls=TuneFunctionEncoder))
        assert resume_config(folder, criteria or {}) is not None
        self.note = json.loads((folder / NOTE).read_text())
        ((state, metadata),) = self.note["trial_data"]
        trial: Any = Trial.from_json_state(state)
        trial.restore_run_metadata(metadata)
        return trial

    def left(self) -> list[str]:
        return sorted(path.name[-1] for path in self.trial_folder.glob("checkpoint_*"))

    def results(self) -> list[int]:
        return [json.loads(line)["training_iteration"] for line in (self.trial_folder / "result.json").read_text().splitlines()]


def result(iteration: int) -> dict[str, Any]:
    return {"training_iteration": iteration, "reward": iteration / 10}


def newest(trial: Any) -> Any:
    return trial.run_metadata.checkpoint_manager.latest_checkpoint_result


def test_the_newest_that_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path, iterations=[2, 3, 4], results=[1, 2, 3, 4])
    (run.checkpoint(4) / "w").write_text("weig")  # cut short
    trial = run.resumed({"training_iteration": 4})
    assert Path(newest(trial).checkpoint.path) == run.checkpoint(3)
    assert newest(trial).metrics == {"training_iteration": 3, "reward": 0.3}
    assert run.left() == ["1", "2"]
    assert trial.storage.current_checkpoint_index == 3  # a new one goes where there never was one
    assert trial.status == "PENDING"
    assert f"continues from {run.checkpoint(3)}" in capsys.readouterr().out


def test_results_that_were_not_noted_are_in_the_checkpoints_and_half_of_one_is_cut_off(tmp_path: Path) -> None:
    run = Run(tmp_path, iterations=[3, 4], results=[1, 2])
    with (run.trial_folder / "result.json").open("a") as file:
        file.write('{"training_iteration": 3, "rew')
    assert newest(run.resumed()).metrics == {"training_iteration": 4, "reward": 0.4}
    assert run.results() == [1, 2, 3, 4]


def test_as_many_are_kept_as_ever_and_the_stopper_that_ended_does_not_come_back(tmp_path: Path) -> None:
    run = Run(tmp_path, iterations=[2, 3, 4], results=[1, 2, 3, 4])
    manager = run.resumed().run_metadata.checkpoint_manager
    assert [Path(found.checkpoint.path).name[-1] for found in manager.best_checkpoint_results] == ["2", "3"]
    assert run.left() == ["2", "3"] and run.note["runner_data"] == {"_total_time": 7.0}


def test_nothing_whole_is_a_new_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path, iterations=[2], results=[1, 2])
    (run.checkpoint(2) / "w").unlink()
    trial = run.resumed({"training_iteration": 2})
    assert newest(trial) is None and trial.status == "PENDING"
    assert "has no complete checkpoint: it starts" in capsys.readouterr().out


def test_what_is_no_checkpoint_of_tunes_stays_and_counts_for_nothing(tmp_path: Path, capsys) -> None:
    run = Run(tmp_path, iterations=[2, 3], results=[1, 2, 3])
    trial = run.trial_folder
    for name in ("checkpoint_export_7", "checkpoint_7", "checkpoint_000009x"):
        (trial / name).mkdir()
        (trial / name / "w").write_text("mine")
    for name in ("checkpoint_000001.bak", "checkpoint_best", "kept"):  # whole, and of a later iteration
        shutil.copytree(run.checkpoint(3), trial / name)
        (trial / name / "manifest.json").write_text((trial / name / "manifest.json").read_text().replace(": 3,", ": 9,"))
    (trial / "checkpoint_000005").symlink_to(trial / "kept")
    (trial / "checkpoint_notes").write_text("mine")
    (trial / "checkpoint_000007").mkdir()
    (trial / "checkpoint_000007" / "notes.txt").write_text("mine")
    (trial / "checkpoint_000008").mkdir()
    (trial / "checkpoint_000008" / "w").write_text("wei")  # cut short, before its list of files was copied
    before = {path: path.read_bytes() for path in trial.rglob("*") if path.is_file()}
    found = run.resumed()
    assert Path(newest(found).checkpoint.path) == run.checkpoint(3) and found.storage.current_checkpoint_index == 8
    listed = found.run_metadata.checkpoint_manager.best_checkpoint_results
    assert [Path(one.checkpoint.path) for one in listed] == [run.checkpoint(2), run.checkpoint(3)]
    gone = {path for path in before if not path.exists()}
    assert gone == {trial / "checkpoint_000008" / "w"} and (trial / "checkpoint_000005").is_symlink()
    assert "checkpoint_000007 is no complete checkpoint; it stays, because it holds notes.txt" in capsys.readouterr().out


def test_other_algorithms_go_on_as_tune_has_it(tmp_path: Path) -> None:
    run = Run(tmp_path, iterations=[], results=[1])
    run.checkpoint(1).mkdir()
    assert newest(run.resumed()).metrics == result(1)
    assert run.left() == ["0"]


@pytest.mark.parametrize("status", ["RUNNING", "PAUSED", "ERROR"])
@pytest.mark.parametrize(("end", "goes_on"), [({"training_iteration": 5}, True), ({"reward": 0.4}, False)])
def test_a_trial_whose_end_was_not_noted_has_ended(tmp_path: Path, status: str, end: dict[str, float], goes_on: bool) -> None:
    trial = Run(tmp_path, iterations=[3, 4], results=[1, 2, 3], status=status).resumed({"training_iteration": 9, **end})
    assert trial.status == ("PENDING" if goes_on else "TERMINATED")
    assert goes_on or {**trial.last_result, **result(4)} == trial.last_result


def test_a_trial_that_said_it_is_done_has_ended(tmp_path: Path) -> None:
    run = Run(tmp_path, iterations=[3], results=[1, 2])
    with atomic_directory(run.checkpoint(4), iteration=4) as partial:
        (partial / "result.json").write_text(json.dumps({**result(4), "done": True}))
    assert run.resumed().status == "TERMINATED"


@pytest.mark.parametrize(("interrupted", "status"), [(False, "TERMINATED"), (True, "PENDING")])
def test_what_finished_stays_finished_unless_ctrl_c_ended_it(tmp_path, interrupted, status) -> None:
    run = Run(tmp_path, iterations=[2, 3, 4], results=[1, 2, 3, 4], status="TERMINATED")
    if interrupted:
        run.stopper.interrupted.add(run.trial.trial_id)
    trial = run.resumed({"training_iteration": 9})  # without it a scheduler ended it, say
    assert trial.status == status
    if interrupted:
        assert Path(newest(trial).checkpoint.path) == run.checkpoint(4)
    else:
        assert run.left() == ["1", "2", "3"]


def test_a_folder_that_was_moved(tmp_path: Path) -> None:
    run = Run(tmp_path / "before", iterations=[2, 3], results=[1, 2, 3])
    (tmp_path / "after").mkdir()
    moved = run.folder.rename(tmp_path / "after/renamed")
    trial = run.resumed(folder=moved)
    assert Path(newest(trial).checkpoint.path) == moved / "trial/checkpoint_000002"
    assert Path(trial.path) == moved / "trial"


@pytest.mark.parametrize("ctrl_c", [True, False])
def test_samples_that_are_still_to_come_are_made(tmp_path: Path, ctrl_c: bool) -> None:
    run = Run(tmp_path, iterations=[2], results=[1, 2])
    samples = BasicVariantGenerator()
    if ctrl_c:
        samples.set_finished()
    samples.save_to_dir(str(run.folder), session_str="2026-01-01_00-00-00")
    run.resumed()
    restored = BasicVariantGenerator()
    restored.restore_from_dir(str(run.folder))
    assert not restored.is_finished()


@pytest.mark.parametrize("trials", [None, []])
def test_no_run_to_resume(tmp_path: Path, trials: list[Any] | None) -> None:
    if trials is not None:
        (tmp_path / NOTE).write_text(json.dumps({"trial_data": trials, "runner_data": {}}))
    assert resume_config(tmp_path, {}) is None


def test_a_note_that_a_full_disk_cut_short_leads_to_the_checkpoints(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 3], [2, 3])
    (run.folder / NOTE).write_text('{"trial_data": [')
    (run.checkpoint(3) / "w").write_text("weig")  # cut short, too
    with pytest.raises(ValueError, match=rf"{NOTE} is damaged: .*of --resume: --restore {run.checkpoint(2)} goes on"):
        resume_config(run.folder, {})
    (run.checkpoint(2) / "w").unlink()
    with pytest.raises(ValueError, match="no trial has a complete checkpoint, so start anew"):
        resume_config(run.folder, {})
