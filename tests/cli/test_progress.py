"""What the terminal says of trials that start, and go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers.pbt import _make_experiment_tag

from rapo_rllib.cli.train.progress import TrainingReporter
from rapo_rllib.cli.train.trial_tags import trial_folder


class Trial(SimpleNamespace):
    """What the reporter asks of Tune's."""

    def __str__(self) -> str:
        return f"PPO_{self.trial_id}"


def test_after_an_exploit_the_clone_names_its_new_settings_and_the_donor_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    trials: list[Any] = [Trial(trial_id=name, experiment_tag=f"0_lr={name}", path=f"results/{name}") for name in ("1", "2")]
    reporter = TrainingReporter({})
    for trial in trials:
        reporter.on_trial_start(0, trials, trial)
    trials[0].config = {"lr": 5e-6, "gamma": 0.9}
    trials[0].experiment_tag = _make_experiment_tag("0_lr=1", trials[0].config, {"lr": [0.5]})
    for trial in trials:
        reporter.on_trial_start(1, trials, trial)
    assert capsys.readouterr().out.splitlines() == [
        "[PPO_1] started; results go to results/1",
        "[PPO_2] started; results go to results/2",
        "[PPO_1] continues from a better trial's checkpoint with lr=5e-06",
        "[PPO_2] continues",
    ]


def test_a_trials_folder_is_named_by_exact_numbers() -> None:
    trial: Any = Trial(trial_id="1", experiment_tag="0_actor_lr=0.0000,lr=0.0000,rank=8", path="")
    trial.evaluated_params = {"lr": 1e-6, "a/actor_lr": 2.5e-7, "model/lora/rank": 8}
    assert trial_folder(trial).startswith("PPO_1_0_actor_lr=2.5e-07,lr=1e-06,rank=8_2")
