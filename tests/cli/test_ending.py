"""What ends a run: the numbers of summary.json, and the trials of a sweep beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from rapo_rllib.cli.train.ending import METRICS, _goal, close_run, comparison, summary_of, written
from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.cli.train.run import _last_lines
from rapo_rllib.monitoring.warnings import TrainingWarning, WarningWatch


def test_a_summary_holds_plain_numbers_and_null_for_what_is_missing() -> None:
    found = {
        "accuracy_before": numpy.float32(0.25),
        "accuracy_after": 1.0,
        "evaluated_questions": numpy.int64(128),
        "seconds": float("nan"),
        "other": 3,
    }
    assert json.dumps(summary_of({"rapo": found}, "/c", WarningWatch())) == (
        '{"accuracy_before": 0.25, "accuracy_after": 1.0, "accuracy_best": null, "evaluated_questions": 128, "seconds": null, '
        '"tokens_per_s": null, "retrievals": null, "checkpoint": "/c", "warnings": []}'
    )


def test_a_summary_holds_the_warnings() -> None:
    watch, warning = WarningWatch(), TrainingWarning(3, "nothing_retrieved", "nothing", "do")
    watch.begun, watch.holding = [warning, TrainingWarning(4, "clipped", "many", "less")], [warning]
    assert summary_of({"rapo": {"retrievals": 0}}, None, watch)["warnings"] == [
        {"iteration": 3, "name": "nothing_retrieved", "text": "nothing", "advice": "do", "holds": True},
        {"iteration": 4, "name": "clipped", "text": "many", "advice": "less", "holds": False},
    ]


def test_an_algorithm_without_accuracy_has_no_summary() -> None:
    assert summary_of({"training_iteration": 3}, "/c", WarningWatch()) is None


@pytest.mark.parametrize(
    ("scheduler", "checkpoints", "goal"),
    [
        ({}, {}, (None, "max")),
        ({"metric": "a"}, {"checkpoint_score_attribute": "loss"}, ("a", "max")),
        ({"metric": "loss", "mode": "min"}, {}, ("loss", "min")),
        ({}, {"checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}, ("loss", "min")),
    ],
)
def test_scheduler_then_checkpoints_name_the_goal(scheduler: dict, checkpoints: dict, goal: tuple) -> None:
    assert _goal(ExperimentSpec("a", "RAPO", {}, scheduler=scheduler, checkpoint_config=checkpoints)) == goal


ACCURACY, REWARD = METRICS[0], METRICS[2]


class Trial(SimpleNamespace):
    def __str__(self) -> str:
        return f"RAPO_{self.number}"


def trial(number: int, status: str = "TERMINATED", **values: float) -> Any:
    """One with the last values of metrics, by their last names."""
    found = {name: {"last": values[key]} for name in METRICS if (key := name.rpartition("/")[2]) in values}
    result = {"training_iteration": 3, "time_total_s": 9.0}
    return Trial(number=number, status=status, metric_analysis=found, last_result=result, evaluated_params={"lr": number})


def test_the_best_comes_first_and_is_named() -> None:
    trials = [trial(0, accuracy=0.25), trial(1, accuracy=0.75), trial(2, "ERROR", accuracy=0.9), trial(3, accuracy=0.5)]
    first, *rows, last = comparison(trials)
    assert first == f"Trials by {ACCURACY} (highest first):"
    assert [row.split()[0] for row in rows] == ["0.75", "0.5", "0.25", "failed"]
    assert [row.split()[-1] for row in rows] == ["lr=1", "lr=3", "lr=0", "lr=2"]
    assert rows[0].split()[1:3] == ["3", "iterations"]
    assert last == f"Best trial: RAPO_1 ({ACCURACY} 0.75)"


def test_the_experiments_own_metric_and_order_decide() -> None:
    trials = [trial(0, accuracy=0.25, episode_return_mean=2.0), trial(1, accuracy=0.75, episode_return_mean=1.0)]
    assert comparison(trials, REWARD, "max")[-1].startswith("Best trial: RAPO_0")
    assert comparison(trials, REWARD, "min")[-1].startswith("Best trial: RAPO_1")
    assert "lowest first" in comparison(trials, REWARD, "min")[0]


def test_what_not_all_have_evaluated_is_compared_by_reward_unless_it_is_named() -> None:
    trials = [trial(0, accuracy=0.25, episode_return_mean=2.0), trial(1, episode_return_mean=3.0)]
    assert comparison(trials)[0].startswith(f"Trials by {METRICS[1]}")
    assert comparison(trials)[-1].startswith("Best trial: RAPO_1")
    assert comparison(trials[::-1], ACCURACY)[-1].startswith("Best trial: RAPO_0")  # one that never reported it is last


def test_one_trial_and_failed_ones_are_not_compared() -> None:
    assert comparison([trial(0, accuracy=0.25)]) == []
    assert comparison([trial(0, "ERROR", accuracy=1.0), trial(1, "ERROR", accuracy=0.5)]) == []  # which is said already


@pytest.mark.parametrize(
    ("metric", "said"),
    [("loss", "loss was reported by none of those"), (None, "no reward or accuracy was reported by all of those")],
)
def test_trials_without_a_number_are_told_how_to_be_compared(metric: str | None, said: str) -> None:
    (line,) = comparison([trial(0), trial(1, accuracy=0.25), trial(2, "ERROR", accuracy=0.5)], metric)
    assert f"cannot be compared: {said} that did not fail. checkpoint_config.checkpoint_score_attribute, or" in line


def test_keys_with_the_same_end_are_written_whole() -> None:
    assert written({"a/rank": 4, "b/rank": 8, "model/lr": 1e-6}) == "a/rank=4,b/rank=8,lr=1e-06"


@pytest.mark.parametrize(
    "copied", ["Failure # 1\nOSError: no room\n", "Failure #", None], ids=["whole", "cut-short", "missing"]
)
def test_an_error_is_told_where_its_copy_beside_the_results_is_not_whole(tmp_path: Path, copied: str | None) -> None:
    own, copy = tmp_path / "own.txt", tmp_path / "error.txt"
    own.write_text("Failure # 1\nOSError: no room\n")
    if copied is not None:
        copy.write_text(copied)
    whole = copy if copied == own.read_text() else own
    told = _last_lines(SimpleNamespace(path=str(tmp_path), error_file=str(own)))
    assert told.split("\n  ") == ["", "Failure # 1", "OSError: no room", f"(all of it: {whole})"]


def test_an_error_without_a_file_is_told_as_that(tmp_path: Path) -> None:
    assert _last_lines(SimpleNamespace(path=str(tmp_path), error_file=None)) == "no error file"


def test_a_summary_that_has_no_room_hides_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    failed = trial(7, "ERROR")
    failed.last_result, failed.path, failed.trial_id = {"rapo": {"retrievals": 3}}, str(tmp_path / "file" / "trial"), "7"
    manager = SimpleNamespace(checkpoint_config=SimpleNamespace(checkpoint_score_attribute=None), latest_checkpoint_result=None)
    failed.run_metadata = SimpleNamespace(checkpoint_manager=manager)
    close_run(Path("job.yaml"), [(ExperimentSpec("a", "RAPO", {}), [failed])], {"7": WarningWatch()}, interrupted=False)
    said = capsys.readouterr()
    assert f"{tmp_path}/file/trial/summary.json could not be written: [Errno 20] Not a directory" in said.err
    assert "Your training failed.\nNo trial has written a checkpoint." in said.out
    assert [line.split() for line in said.out.splitlines() if "retrievals" in line] == [["retrievals", "3"]]
