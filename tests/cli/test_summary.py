"""What ends a run: the numbers of summary.json, and the values of progress lines and stop criteria."""

import json

import numpy
import pytest

from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.cli.train.interrupt import Interruption, TrialStopper
from rapo_rllib.cli.train.progress import result_line
from rapo_rllib.cli.train.summary import _goal, summary_of
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
    summary = summary_of({"rapo": {"retrievals": 0}}, None, watch)
    assert summary["warnings"] == [
        {"iteration": 3, "name": "nothing_retrieved", "text": "nothing", "advice": "do", "holds": True},
        {"iteration": 4, "name": "clipped", "text": "many", "advice": "less", "holds": False},
    ]


def test_an_algorithm_without_accuracy_has_no_summary() -> None:
    assert summary_of({"training_iteration": 3}, "/c", WarningWatch()) is None


def test_a_line_of_a_language_model() -> None:
    result = {
        "training_iteration": 3,
        "time_total_s": 61.04,
        "env_runners": {"episode_return_mean": 0.5, "tokens_per_s": 99.6, "retrieval": {"count": 7}},
        "timers": {"rollout": 10.0, "update": 2.54, "training_step": 20.0},
        "evaluation": {"env_runners": {"accuracy": 0.3125, "episode_return_mean": 0.4}},
    }
    assert result_line(result) == (
        "iteration 3 · 61.0 s · reward 0.500 · 100 tokens/s · 7 retrievals · rollout 10.0 s · update 2.5 s · "
        "held-out accuracy 0.312"
    )


def test_a_line_before_the_first_episode_ends() -> None:
    assert result_line({"training_iteration": 1, "time_total_s": 0.5}) == "iteration 1 · 0.5 s"


@pytest.mark.parametrize(("iterations", "left"), [(None, ""), (2, ""), (1, ""), (6, " · about 20 min left")])
def test_the_line_tells_the_time_that_is_left(iterations: int | None, left: str) -> None:
    assert result_line({"training_iteration": 2, "time_total_s": 600.0}, iterations) == f"iteration 2 · 600.0 s{left}"


def test_any_criterion_stops(capsys) -> None:
    stopper = TrialStopper({"a": 10, "b/c": 5, "episode_retrun": 1}, None, Interruption())
    assert not stopper("t", {"a": 9, "b": {"c": 4}, "episode_return": 7})
    assert "stop criterion episode_retrun is not among the results yet; did you mean episode_return?" in capsys.readouterr().err
    assert stopper("t", {"a": 10, "b": {"c": 4}})
    assert stopper("t", {"a": 9, "b": {"c": 5}})
    assert not stopper("t", {"a": float("nan"), "b": {"c": 4}})
    assert capsys.readouterr().err == ""  # warned once


def test_no_time_left_stops() -> None:
    assert TrialStopper({}, 0.0, Interruption())("t", {})
    assert not TrialStopper({}, 100.0, Interruption())("t", {})


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
