"""The alarms of a policy that unlearns: on curves of the packaged job, the collapsed one and those that went well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.tune.experiment import Trial

from rapo_rllib.algorithm.run_summary import RunSummary
from rapo_rllib.cli.train.ending import close_run, summary_of
from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.monitoring.warning_rules import errors_apart
from rapo_rllib.monitoring.warnings import WarningWatch, warnings_of

CONFIG = {"num_hybrid": 4}
COLLAPSED = [2.3, 19.5, 3.1, 0.0]  # held-out accuracy of rapo_math with seed 1, % after 0, 5, 10 and 15 iterations
HEALTHY = [
    [2.3, 34.4, 42.2, 39.8, 45.3],  # seed 0
    [14.1, 39.1, 42.2, 42.2, 45.3],  # an older form of the job
    [2.3, 33.6, 46.9, 46.9, 57.0],  # grpo_math
    [2.3, 16.4, 25.0],  # seed 1, with a baseline for each kind
]


def evaluated(curve: list[float], questions: int = 128) -> list[dict[str, Any]]:
    """Results of iterations, every fifth with an evaluation; the first one is of before."""
    summary, results = RunSummary(), []
    for number in range(5 * len(curve) - 4):
        if number % 5 == 0:
            summary.take_evaluation({"accuracy": curve[number // 5] / 100, "num_episodes": questions})
        if number:
            results.append({"training_iteration": number, "rapo": summary.as_dict(60.0 * number)})
    return results


def kinds(unhelped: list[float], helped: list[float], count: float = 40.0) -> list[dict[str, Any]]:
    """Results of iterations in which these shares of each kind were right."""
    return [
        {
            "training_iteration": number,
            "env_runners": {
                "retrieval": {
                    "others_count": count,
                    "accuracy_others": without,
                    "retrieved_count": count,
                    "accuracy_retrieved": with_it,
                }
            },
        }
        for number, (without, with_it) in enumerate(zip(unhelped, helped, strict=True), start=1)
    ]


def names(results: list[dict[str, Any]]) -> dict[str, int]:
    return {warning.name: warning.iteration for warning in warnings_of(results, CONFIG)}


def test_errors_apart_by_hand() -> None:
    # 25/128 and 4/128: pooled 29/256 = 0.1133, error sqrt(0.1133 * 0.8867 * 2/128) = 0.03962; 0.16406 / 0.03962
    assert errors_apart(25, 128, 4, 128) == pytest.approx(4.141, abs=1e-3)
    assert errors_apart(4, 128, 25, 128) == pytest.approx(-4.141, abs=1e-3)
    assert errors_apart(5, 5, 9, 9) == errors_apart(0, 5, 0, 9) == 0.0


def test_the_collapsed_run_is_told_at_its_first_evaluation_below() -> None:
    assert names(evaluated(COLLAPSED)) == {"held_out_fell": 10}


@pytest.mark.parametrize("curve", HEALTHY, ids=str)
def test_curves_of_runs_that_went_well_warn_of_nothing(curve: list[float]) -> None:
    assert names(evaluated(curve)) == {}


def test_a_fall_below_the_start_is_one_and_few_questions_tell_nothing() -> None:
    assert names(evaluated([30.0, 12.0])) == {"held_out_fell": 5}
    assert names(evaluated([30.0, 19.0])) == {}  # 2 errors
    assert names(evaluated([50.0, 0.0], questions=8)) == {}


def test_a_restored_training_remembers_its_best() -> None:
    summary, before = RunSummary(), RunSummary()
    before.take_evaluation({"accuracy": 0.4, "num_episodes": 128})
    old = before.get_state()
    del old["accuracy_best"]  # of a checkpoint that was written before there was one
    for state in (before.get_state(), old):
        summary = RunSummary()
        summary.set_state(state)
        summary.take_evaluation({"accuracy": 0.1, "num_episodes": 128})
        assert summary.as_dict(1.0)["accuracy_best"] == 0.4


RISING = [0.3, 0.4, 0.5, 0.7, 0.85, 0.9, 0.95, 0.98, 0.98, 0.98]
FALLING = [0.02, 0.06, 0.12, 0.17, 0.17, 0.12, 0.08, 0.04, 0.02, 0.02]  # of the collapsed run, between the shares that it had


def test_unhelped_ones_that_fall_while_helped_ones_rise() -> None:
    (warning,) = warnings_of(kinds(FALLING, RISING), CONFIG)
    assert (warning.name, warning.iteration) == ("unhelped_fell", 10)
    assert "3% of the trajectories that retrieve nothing are right, and were 15%" in warning.text
    assert "98%, and was 82%" in warning.text and "advantage_baseline: kind" in warning.advice


@pytest.mark.parametrize(
    ("unhelped", "helped", "count"),
    [
        (RISING, RISING, 40.0),
        ([0.02, 0.05, 0.1, 0.16, 0.2, 0.25, 0.22, 0.3, 0.27, 0.3], RISING, 40.0),  # as seed 0 went
        (FALLING, RISING, 9.0),  # too few
        (FALLING, RISING[::-1], 40.0),  # all fall: held-out accuracy tells that
        ([0.3] * 7 + [0.2] * 3, RISING, 200.0),  # by less than half
    ],
)
def test_other_courses_are_no_such_fall(unhelped: list[float], helped: list[float], count: float) -> None:
    assert names(kinds(unhelped, helped, count)) == {}


@pytest.mark.parametrize("curve", [COLLAPSED, [2.3, 19.5, 3.1, 20.3], HEALTHY[0]], ids=["collapsed", "recovered", "healthy"])
def test_a_run_that_ends_below_its_best_does_not_end_as_a_success(curve: list[float], capsys: Any) -> None:
    watch, trial, results = WarningWatch(), Trial("rapo-math", stub=True), evaluated(curve)
    for result in results:
        watch.take(result, CONFIG)
    close_run(
        Path("job.yaml"), [(ExperimentSpec("rapo-math", "RAPO", {}), [trial])], {trial.trial_id: watch}, interrupted=False
    )
    said = capsys.readouterr().out
    lost = curve is COLLAPSED
    assert ("Your training finished." in said) is not lost
    assert ("ended, but not as it was meant" in said and f"{trial}: held-out accuracy fell from 19.5% to 0.0%" in said) is lost
    summary = summary_of(results[-1], None, watch)
    assert [warning["holds"] for warning in summary["warnings"]] == ([] if curve is HEALTHY[0] else [lost])
