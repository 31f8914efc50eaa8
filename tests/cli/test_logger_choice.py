"""``loggers`` of a job: what is understood, and what is refused with the reason."""

import sys
from pathlib import Path
from typing import Any

import pytest
from ray.tune import Callback
from ray.tune.logger import TBXLoggerCallback

from rapo_rllib.cli.train.loggers import made_loggers


def test_names_paths_and_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.air.integrations.mlflow import MLflowLoggerCallback  # each process of a whole run collects this file
    from ray.air.integrations.wandb import WandbLoggerCallback

    monkeypatch.setenv("WANDB_MODE", "offline")
    own = Callback()
    wandb_item = {"type": "wandb", "project": "maths", "mode": "offline", "tags": ["a"]}
    made = made_loggers([wandb_item, {"type": "mlflow", "experiment_name": "x"}, "ray.tune.logger.TBXLoggerCallback", own])
    assert isinstance(made[0], WandbLoggerCallback)
    assert [type(each) for each in made[1:]] == [MLflowLoggerCallback, TBXLoggerCallback, Callback]
    assert made[0].kwargs == {"mode": "offline", "tags": ["a"], "dir": str(Path.cwd())} and made[0].project == "maths"
    assert made[1].experiment_name == "x" and made[3] is own
    assert wandb_item["type"] == "wandb"  # what was given is as it was


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("wandb", r"loggers = 'wandb': must be a list"),
        ([3], r"loggers\[0\].type = None: must be one of wandb, mlflow"),
        ([{"project": "x"}], r"loggers\[0\].type = None: must be one of"),
        (["wandb", "mlfow"], r"loggers\[1\].type = 'mlfow': must be one of wandb, mlflow, package.module.Class"),
        ([{"type": "mlflow", "experiment": "x"}], r"loggers\[0\] \(mlflow\): .*unexpected keyword argument 'experiment'"),
        (["no_such_package.Logger"], r"type = 'no_such_package.Logger': No module named 'no_such_package'"),
        (["ray.tune.logger.Nothing"], r"'ray.tune.logger.Nothing': module .* has no attribute 'Nothing'"),
        (["collections.OrderedDict"], r"'collections.OrderedDict': is no ray.tune.Callback"),
    ],
)
def test_mistakes(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made_loggers(given)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # as if it were not installed
    with pytest.raises(
        ValueError, match=rf"loggers\[0\]: {name} needs the package {name}: run `pip install 'rapo_rllib\[loggers\]'`"
    ):
        made_loggers([name])
