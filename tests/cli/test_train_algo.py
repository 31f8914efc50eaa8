"""``rllib train --algo``: what is refused."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rapo_rllib.cli.main import app


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
