"""Which checkpoint a trial goes on from, whatever Tune noted last."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train._internal.checkpoint_manager import _CheckpointManager, _TrainingResult
from ray.tune import Checkpoint, CheckpointConfig
from ray.tune.experiment import Trial

from rapo_rllib.checkpoint_folder import whole_folder
from rapo_rllib.cli.resume import NewestCheckpoints, resume_config


class Job:
    """A trial's folder with checkpoints, and the trial as Tune may have noted it."""

    def __init__(self, folder: Path, iterations: list[int], results: list[int]) -> None:
        self.folder = folder
        for iteration in iterations:
            with whole_folder(folder / f"checkpoint_{iteration - 1:06d}", iteration=iteration) as partial:
                (partial / "w").write_text("weights")
                (partial / "result.json").write_text(json.dumps({"training_iteration": iteration, "reward": iteration / 10}))
        lines = [json.dumps({"training_iteration": iteration, "reward": iteration / 10}) + "\n" for iteration in results]
        (folder / "result.json").write_text("".join(lines))
        self.manager = _CheckpointManager(CheckpointConfig(num_to_keep=2))
        deleted = Checkpoint.from_directory(folder / "checkpoint_000000")
        self.manager.register_checkpoint(_TrainingResult(deleted, {"training_iteration": 1}))

    def resumed(self) -> Any:
        """Tune's list of checkpoints after the first step."""
        metadata = SimpleNamespace(checkpoint_manager=self.manager)
        storage = SimpleNamespace(current_checkpoint_index=0)
        trial = SimpleNamespace(path=str(self.folder), run_metadata=metadata, storage=storage, is_finished=lambda: False)
        NewestCheckpoints().on_step_begin(0, [trial])
        self.index = storage.current_checkpoint_index
        return metadata.checkpoint_manager

    def left(self) -> list[str]:
        return sorted(path.name[-1] for path in self.folder.glob("checkpoint_*"))


def test_the_newest_that_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(tmp_path, iterations=[2, 3, 4], results=[1, 2, 3, 4])
    (tmp_path / "checkpoint_000003" / "w").write_text("weig")  # cut short
    found = job.resumed().latest_checkpoint_result
    assert Path(found.checkpoint.path).name == "checkpoint_000002"
    assert found.metrics == {"training_iteration": 3, "reward": 0.3}
    assert job.left() == ["1", "2"]
    assert job.index == 3  # a new one goes where there never was one
    assert "goes on from" in capsys.readouterr().out


def test_results_that_were_not_noted_any_more_are_in_the_checkpoints(tmp_path: Path) -> None:
    job = Job(tmp_path, iterations=[3, 4], results=[1, 2])
    assert job.resumed().latest_checkpoint_result.metrics == {"training_iteration": 4, "reward": 0.4}
    lines = (tmp_path / "result.json").read_text().splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [0.1, 0.2, 0.3, 0.4]


def test_as_many_are_kept_as_ever(tmp_path: Path) -> None:
    job = Job(tmp_path, iterations=[2, 3, 4], results=[1, 2, 3, 4])
    assert [Path(result.checkpoint.path).name[-1] for result in job.resumed().best_checkpoint_results] == ["2", "3"]
    assert job.left() == ["2", "3"]


def test_nothing_whole_is_a_new_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(tmp_path, iterations=[2], results=[1, 2])
    (tmp_path / "checkpoint_000001" / "w").unlink()
    assert job.resumed().latest_checkpoint_result is None
    assert "has no complete checkpoint: it starts again" in capsys.readouterr().out


def test_a_result_that_was_being_written_is_cut_off(tmp_path: Path) -> None:
    job = Job(tmp_path, iterations=[1, 2], results=[1, 2])
    with (tmp_path / "result.json").open("a") as file:
        file.write('{"training_iteration": 3, "rew')
    job.resumed()
    assert [json.loads(line)["training_iteration"] for line in (tmp_path / "result.json").read_text().splitlines()] == [1, 2]


def test_other_algorithms_go_on_as_tune_has_it(tmp_path: Path) -> None:
    job = Job(tmp_path, iterations=[], results=[1])
    (tmp_path / "checkpoint_000000").mkdir()
    assert job.resumed() is job.manager


@pytest.mark.parametrize("trials", [None, []])
def test_no_run_to_resume(tmp_path: Path, trials: list[Trial] | None) -> None:
    if trials is not None:
        (tmp_path / "experiment_state-2026-01-01_00-00-00.json").write_text(json.dumps({"trial_data": trials}))
    assert resume_config(tmp_path) is None
