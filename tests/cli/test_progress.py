"""The lines on the terminal: of trials that start and go on, of iterations; the bar of agents and builds."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from rapo_rllib.agents import asking
from rapo_rllib.agents.asking import Progress
from rapo_rllib.cli.terminal import advance, progress_bar
from rapo_rllib.cli.train.progress import TrainingReporter, result_line
from rapo_rllib.cli.train.run import _folder
from rapo_rllib.monitoring.warnings import WarningWatch
from rapo_rllib.traces.rows import BuildProgress


class Trial(SimpleNamespace):
    """What the reporter asks of Tune's."""

    def __str__(self) -> str:
        return f"PPO_{self.trial_id}"


def test_after_an_exploit_the_clone_names_its_new_settings_and_the_donor_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    trials: list[Any] = [Trial(trial_id=name, config={"lr": 0.1, "gamma": 0.9}, path=f"results/{name}") for name in ("1", "2")]
    reporter = TrainingReporter({}, defaultdict(WarningWatch))
    for trial in trials:
        reporter.on_trial_start(0, trials, trial)
    trials[0].config = {"lr": 5e-6, "gamma": 0.9, "env": object()}
    for trial in trials:
        reporter.on_trial_start(1, trials, trial)
    assert capsys.readouterr().out.splitlines() == [
        "[PPO_1] started; results go to results/1",
        "[PPO_2] started; results go to results/2",
        "[PPO_1] continues from a better trial's checkpoint with lr=5e-06",
        "[PPO_2] continues",
    ]


@pytest.mark.parametrize("told", ["on_trial_error", "on_trial_recover"])
def test_a_failed_trial_names_its_last_checkpoint(told: str, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = TrainingReporter({}, defaultdict(WarningWatch))
    for checkpoint in (SimpleNamespace(path="results/1/checkpoint_000003"), None):
        getattr(reporter, told)(0, [], Trial(trial_id="1", path="results/1", checkpoint=checkpoint))
    begin = "[PPO_1] failed; the whole error is in results/1/error.txt, "
    assert capsys.readouterr().err.splitlines() == [
        f"{begin}its last checkpoint is results/1/checkpoint_000003",
        f"{begin}it has written no checkpoint",
    ]


def test_a_trials_folder_is_named_by_exact_numbers() -> None:
    given = {"lr": 1e-6, "a/lr2": 2.5e-7, "model/lora/rank": 8, "b/uri": "./b.db", "steps": [1, 2]}
    assert _folder(Trial(trial_id="1", evaluated_params=given)) == "PPO_1_lr=1e-06,lr2=2.5e-07,rank=8,uri=._b.db,steps=_1,_2"
    assert _folder(Trial(trial_id="1", evaluated_params={})) == "PPO_1"


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


@pytest.mark.parametrize(
    ("progress", "count", "note"),
    [
        (Progress(400, found=40, ended=80, failed=3), "120/400", ", 40 were there before · 3 failed]"),
        (Progress(120, ended=120), "120/120", "attempts/s]"),
        (Progress(120, ended=60, tokens=6000, started=0.0), "60/120", ", 100 tokens/s]"),
        (BuildProgress(6000, 4000, 12000), "6000/12000", ", 2,000 were there before]"),
    ],
)
def test_where_an_agent_or_a_build_has_come(
    progress: Progress | BuildProgress,
    count: str,
    note: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "time", SimpleNamespace(monotonic=lambda: 60.0))
    with progress_bar("attempts") as bar:
        advance(bar, progress)
    line = capsys.readouterr().err.strip().rpartition("\r")[2]
    assert count in line and line.endswith(note)
