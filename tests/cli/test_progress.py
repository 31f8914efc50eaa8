"""What the terminal says of trials that start, and go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rapo_rllib.cli.train.progress import TrainingReporter
from rapo_rllib.cli.train.run import _folder


class Trial(SimpleNamespace):
    """What the reporter asks of Tune's."""

    def __str__(self) -> str:
        return f"PPO_{self.trial_id}"


def test_after_an_exploit_the_clone_names_its_new_settings_and_the_donor_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    trials: list[Any] = [Trial(trial_id=name, config={"lr": 0.1, "gamma": 0.9}, path=f"results/{name}") for name in ("1", "2")]
    reporter = TrainingReporter({})
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


def test_a_trials_folder_is_named_by_exact_numbers() -> None:
    given = {"lr": 1e-6, "a/lr2": 2.5e-7, "model/lora/rank": 8, "b/uri": "./b.db", "steps": [1, 2]}
    assert _folder(Trial(trial_id="1", evaluated_params=given)) == "PPO_1_lr=1e-06,lr2=2.5e-07,rank=8,uri=._b.db,steps=_1,_2"
    assert _folder(Trial(trial_id="1", evaluated_params={})) == "PPO_1"
