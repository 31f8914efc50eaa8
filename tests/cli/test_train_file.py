"""``rllib train`` with real Ray, and ``rllib evaluate`` of what it trained: what a user sees and finds on disk."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from cli_runs import checkpoints, rllib
from train_here import train_here, train_toys

from rapo_rllib.cli.jobs import prepare
from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.experiments import read_experiments

CARTPOLE = """
cartpole-ppo:
  run: PPO
  env: CartPole-v1
  stop:
    env_runners/episode_return_mean: 500
    training_iteration: 100
  checkpoint_config: {checkpoint_frequency: 1, checkpoint_at_end: false}
  config:
    gamma: 0.97
    lambda: 0.9
    lr: 3e-4
    num_env_runners: 0
    num_epochs: 2
    minibatch_size: 32
    train_batch_size_per_learner: 64
    model_config: {fcnet_hiddens: [7], vf_share_layers: true}
"""


def loaded(checkpoint: Path):
    from ray.rllib.algorithms.algorithm import Algorithm

    return Algorithm.from_checkpoint(str(checkpoint))


def results(folder: Path) -> list[dict]:
    return [json.loads(line) for file in folder.glob("results/*/*/result.json") for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def cartpole_run(tmp_path_factory):
    """The file, stopped by the command line after two iterations."""
    folder = tmp_path_factory.mktemp("cartpole")
    (folder / "ppo.yaml").write_text(CARTPOLE)
    return folder, rllib(folder, "train", "file", "ppo.yaml", "--stop", '{"training_iteration": 2}', "--set", "gamma=0.5")


def test_a_yaml_trains_and_says_what_happened(cartpole_run) -> None:
    folder, done = cartpole_run
    assert done.returncode == 0, done.stderr
    assert [result["training_iteration"] for result in results(folder)] == [1, 2]
    assert "iteration 1 · " in done.stdout
    assert "reward " in done.stdout
    assert "Your training finished.\nBest available checkpoint for each trial:\n" in done.stdout
    assert f"rllib train file ppo.yaml --restore {checkpoints(folder)[-1]}" in done.stdout
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("results/*/*/summary.json"))


def test_the_files_checkpoint_config_is_kept(cartpole_run) -> None:
    folder, _ = cartpole_run
    assert [path.name for path in checkpoints(folder)] == ["checkpoint_000000", "checkpoint_000001"]


@pytest.mark.usefixtures("ray_session")
def test_a_checkpoint_loads_with_every_setting(cartpole_run) -> None:
    folder, _ = cartpole_run
    algorithm = loaded(checkpoints(folder)[-1])
    try:
        assert algorithm.iteration == 2
        config = algorithm.config
        assert (config.lr, config.lambda_, config.num_epochs, config.minibatch_size) == (3e-4, 0.9, 2, 32)
        assert config.train_batch_size_per_learner == 64
        assert config.gamma == 0.5  # --set
        assert algorithm.get_module().state_dict()["encoder.encoder.net.mlp.0.weight"].shape == (7, 4)
    finally:
        algorithm.stop()


@pytest.mark.usefixtures("ray_session")
def test_a_checkpoint_is_continued(cartpole_run, tmp_path: Path) -> None:
    folder, _ = cartpole_run
    more = ("--set", "stop.training_iteration=3", "--restore", str(checkpoints(folder)[-1]))
    done = train_here(tmp_path, "file", str(folder / "ppo.yaml"), *more)
    assert done.returncode == 0, done.stderr
    assert [result["training_iteration"] for result in results(tmp_path)] == [3]
    (checkpoint,) = checkpoints(tmp_path)
    assert f"rllib train file {folder / 'ppo.yaml'} --restore {checkpoint}" in done.stdout


PYTHON_FILE = """
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig

from line_env import Line


def report(*, result, **kwargs):
    result["rapo"] = {"accuracy_after": 0.5, "retrievals": 3}


config = (
    PPOConfig()
    .environment(Line, env_config={"fails": tune.grid_search([True, False])})
    .callbacks(on_train_result=report)
    .env_runners(num_env_runners=0)
    .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    .evaluation(evaluation_interval=1, evaluation_num_env_runners=0, evaluation_duration=1)
)
stop = {"training_iteration": 1}
"""

LINE_ENV = """
import gymnasium


class Line(gymnasium.Env):
    def __init__(self, config=None):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self.action_space = gymnasium.spaces.Discrete(2)
        self.fails = (config or {}).get("fails") is True  # before there are trials it is their grid

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.observation_space.low, {}

    def step(self, action):
        if self.fails:
            raise RuntimeError("the line is broken")
        self.count += 1
        return self.observation_space.low, 1.0, self.count == 5, False, {}
"""


def write_line(folder: Path) -> Path:
    """A Python file with a grid, of which one trial fails; both import what lies beside it."""
    (folder / "files").mkdir()
    (folder / "files" / "line.py").write_text(PYTHON_FILE)
    (folder / "files" / "line_env.py").write_text(LINE_ENV)
    return folder / "files" / "line.py"


def test_a_python_file_finds_what_lies_beside_it_and_workers_are_told_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_line(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "environ", os.environ.copy())
    prepare(file)
    (spec,) = read_experiments(file, RunOptions())
    assert spec.name == "line" and spec.stop == {"training_iteration": 1}
    assert spec.config["env"] is sys.modules.pop("line_env").Line
    assert spec.config["env_config"] == {"fails": {"grid_search": [True, False]}}
    # which Ray gives to its workers; that trials import it is slow: see the grid below
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(file.parent)


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    write_line(folder)
    return folder, rllib(folder, "train", "file", "files/line.py")


REWARD = "evaluation/env_runners/episode_return_mean"


@pytest.mark.slow
def test_a_python_file_with_a_grid_imports_what_lies_beside_it(grid) -> None:
    folder, done = grid
    (result,) = results(folder)
    assert result["config"]["env_config"] == {"fails": False}, done.stderr
    assert result["evaluation"]["env_runners"]["episode_return_mean"] == 5.0  # the place that REWARD names
    assert {path.parent.parent.name for path in checkpoints(folder)} == {"line"}
    (checkpoint,) = checkpoints(folder)  # at the end, by default
    summary = json.loads((checkpoint.parent / "summary.json").read_text())  # results with an accuracy are summarized
    known = {key: value for key, value in summary.items() if value is not None}
    assert known == {"accuracy_after": 0.5, "retrievals": 3, "checkpoint": str(checkpoint), "warnings": []}
    assert len(summary) == 9
    assert done.stdout.count("accuracy_after       0.500") == 1


@pytest.mark.slow
def test_a_failed_trial_is_exit_status_1_with_the_error(grid) -> None:
    folder, done = grid
    assert done.returncode == 1
    assert "the line is broken" in done.stderr
    (error_file,) = folder.glob("results/line/*/error.txt")
    assert f"(all of it: {error_file})" in done.stderr
    (said,) = re.findall(r"All that the processes on this machine said is in (.*/logs)\n", done.stderr)
    assert Path(said).is_dir()
    assert "RuntimeError: the line is broken" in error_file.read_text()


def asha(metric: str, more: str) -> str:
    return f"scheduler: {{type: asha, metric: {metric}, mode: max, {more}}}"


@pytest.mark.usefixtures("ray_session")
def test_asha_stops_the_worse_trial_and_no_failure_those_that_follow(tmp_path: Path) -> None:
    """One trial after the other, compared by their learning rate: the second is behind the first at its first rung."""
    cut = asha("config/lr", "max_t: 2, grace_period: 1, reduction_factor: 2")
    drawn = "lr: {grid_search: [1e-3, 1e-4]}, gamma: {uniform: [0.9, 0.99]}"
    (tmp_path / "three.yaml").write_text(
        "bad: {run: PPO, stop: {training_iteration: 1}, config: {fails: true}}\n"
        f"rates: {{run: PPO, stop: {{training_iteration: 2}}, {cut}, config: {{{drawn}}}}}\n"
        f"evaluated: {{run: PPO, stop: {{training_iteration: 3}}, {asha(REWARD, 'max_t: 4, grace_period: 2')}}}\n"
    )
    done = train_toys(tmp_path, "three.yaml")
    assert done.returncode == 1 and "the line is broken" in done.stderr
    assert "Trials by config/lr (highest first):" in done.stdout and "1 of 4 trials failed." in done.stdout
    assert done.stdout.count("Best trial: ") == 1
    (error_file,) = tmp_path.glob("results/bad/*/error.txt")
    assert f"(all of it: {error_file})\nAll that the processes on this machine said is in /a/session/logs\n" in done.stderr
    assert "RuntimeError: the line is broken" in error_file.read_text()
    last = [json.loads(file.read_text().splitlines()[-1]) for file in tmp_path.glob("results/rates/*/result.json")]
    assert {result["config"]["lr"]: result["training_iteration"] for result in last} == {1e-3: 2, 1e-4: 1}, done.stderr
    drawn_gammas = {result["config"]["gamma"] for result in last}
    assert len(drawn_gammas) == 2
    assert all(0.9 <= gamma <= 0.99 for gamma in drawn_gammas)
    # the first result of a trial has no evaluation, and so no metric
    (file,) = tmp_path.glob("results/evaluated/*/result.json")
    assert [json.loads(line)["training_iteration"] for line in file.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.usefixtures("ray_session")
def test_a_metric_that_no_evaluation_brings_is_told(tmp_path: Path) -> None:
    typo = REWARD.replace("_mean", "_men")
    (tmp_path / "asha.yaml").write_text(
        f"typo: {{run: PPO, stop: {{training_iteration: 3}}, {asha(typo, 'max_t: 4, grace_period: 2')}}}\n"
    )
    done = train_toys(tmp_path, "asha.yaml")
    assert done.returncode == 1
    said = f"scheduler.metric = '{typo}' is not among the results; did you mean {REWARD}"
    assert f"asha.yaml: experiment 'typo': {said}" in done.stderr
    assert "Traceback" not in done.stderr
