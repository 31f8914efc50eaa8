"""``rllib train --algo``: training without a file."""

import json
from pathlib import Path

import pytest
from cli_runs import checkpoints, rllib
from typer.testing import CliRunner

from rapo_rllib.cli.main import app

SMALL = {"train_batch_size_per_learner": 64, "minibatch_size": 32, "num_epochs": 1, "num_env_runners": 0}


def test_ppo_trains_without_a_file(tmp_path: Path) -> None:
    config, stop = json.dumps(SMALL), json.dumps({"training_iteration": 2})
    done = rllib(tmp_path, "train", "--algo", "PPO", "--env", "CartPole-v1", "--config", config, "--stop", stop)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "results").glob("PPO-CartPole-v1/*/result.json")
    assert [json.loads(line)["training_iteration"] for line in file.read_text().splitlines()] == [1, 2]
    assert f"rllib train --algo PPO --env CartPole-v1 --restore {checkpoints(tmp_path)[-1]}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algo", "PPO"], "give --algo and --env"),
        (
            ["--algo", "PP0", "--env", "CartPole-v1"],
            "--algo PP0: experiment 'PP0-CartPole-v1': run = 'PP0' is not an algorithm",
        ),
        (["--algo", "PPO", "--env", "CartPole-v1", "--config", '{"lrr": 1}'], "unknown key 'config.lrr'"),
        (["--algo", "PPO", "--env", "CartPole-v1", "--config", "x"], "--config: not JSON"),
        (["--algo", "PPO", "file", "job.yaml"], "--algo and 'file': give one of them"),
    ],
)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", *arguments])
    assert result.exit_code != 0 and message in result.output
