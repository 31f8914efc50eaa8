"""One job with all loggers, as users write it: numbers are read back from what each of them kept."""

from __future__ import annotations

import json
import math
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from cli_runs import SMALL_PPO
from logged_files import tensorboard_scalars, wandb_records
from places import SUPPORT
from train_here import train_here

# an episode has 500 steps at most, so one ends in each iteration
LONG_ENOUGH = SMALL_PPO.replace("train_batch_size_per_learner: 64", "train_batch_size_per_learner: 512")
JOB = f"""
cart:
  run: PPO
  env: CartPole-v1
  stop: {{training_iteration: 2}}
  checkpoint_config: {{checkpoint_frequency: 1}}
  loggers:
    - {{type: mlflow, tracking_uri: ./mlruns, experiment_name: maths, tags: {{who: me}}}}
    - {{type: wandb, project: maths, mode: offline}}
  config: {{{LONG_ENOUGH}}}
"""

Job = tuple[Path, CompletedProcess]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> Job:
    folder = tmp_path_factory.mktemp("logged")
    (folder / "job.yaml").write_text(JOB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the skinny package has no other store without a server
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("WANDB_MODE", "")  # for it is set, and is to be no more afterwards
        patch.delenv("WANDB_MODE")
        done = train_here(folder, "file", "job.yaml")
    assert done.returncode == 0, done.stderr
    return folder, done


def trial_folder(job: Job) -> Path:
    (file,) = job[0].glob("results/cart/*/result.json")
    return file.parent


def rewards(job: Job) -> dict[int, float]:
    rows = [json.loads(line) for line in (trial_folder(job) / "result.json").read_text().splitlines()]
    return {row["training_iteration"]: row["env_runners"]["episode_return_mean"] for row in rows}


def test_tensorboard_has_the_nested_numbers_by_default(job: Job) -> None:
    scalars = tensorboard_scalars(trial_folder(job))
    assert scalars["ray/tune/env_runners/episode_return_mean"] == pytest.approx(rewards(job))
    assert set(scalars["ray/tune/learners/default_policy/entropy"]) == {1, 2}


@pytest.fixture
def mlflow_run(job: Job, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=str(job[0] / "mlruns"))
    (run,) = client.search_runs([client.get_experiment_by_name("maths").experiment_id])
    return client, run


def test_mlflow_has_numbers_parameters_and_tags(job: Job, mlflow_run: tuple[Any, Any]) -> None:
    client, run = mlflow_run
    history = client.get_metric_history(run.info.run_id, "env_runners/episode_return_mean")
    assert {metric.step: metric.value for metric in history} == pytest.approx(rewards(job))
    assert run.data.params["train_batch_size_per_learner"] == "512"
    assert run.data.tags["who"] == "me"
    assert run.info.status == "FINISHED"


def test_wandb_has_numbers(job: Job) -> None:
    (file,) = job[0].glob("wandb/offline-run-*/*.wandb")
    records = list(wandb_records(file))
    logged = {}
    for history in (record.history for record in records if record.HasField("history")):
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
        logged[row["training_iteration"]] = row["env_runners/episode_return_mean"]
    assert logged == pytest.approx(rewards(job))
    (run,) = (record.run for record in records if record.HasField("run"))
    assert run.project == "maths"


class LocalTrial:
    """What the logger asks of a trial."""

    evaluated_params: dict[str, Any] = {}  # noqa: RUF012
    local_path = ""

    def init_local_path(self) -> None:
        """The folder is there."""


def test_numbers_of_rapo_reach_tensorboard_and_what_is_none_does_not(tmp_path: Path) -> None:
    from ray.tune.logger import TBXLoggerCallback

    from rapo_rllib.monitoring.metrics_flat import flattened

    result = json.loads((SUPPORT / "real_result.json").read_text())
    result["env_runners"] |= {"entropy": math.nan, "accuracy": None}
    trial = LocalTrial()
    trial.local_path = str(tmp_path)
    logger = TBXLoggerCallback()
    logger.log_trial_result(1, trial, result)
    logger.log_trial_end(trial)
    scalars = tensorboard_scalars(tmp_path)
    for name, value in flattened(result).items():
        if name in ("training_iteration", "time_total_s", "env_runners/entropy", "env_runners/accuracy"):
            assert f"ray/tune/{name}" not in scalars
        else:
            assert scalars[f"ray/tune/{name}"][1] == pytest.approx(float(value))
