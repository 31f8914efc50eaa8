"""`rllib train file` with real Ray: what a user sees and finds on disk."""

import json
import os
import signal
from pathlib import Path

import pytest
from cli_runs import SMALL_PPO, checkpoints, rllib, started, wait_for_text

OLD_SHAPE = """
cartpole-ppo:
  run: PPO
  env: CartPole-v1
  stop:
    episode_reward_mean: 500
    training_iteration: 100
  checkpoint_config: {checkpoint_frequency: 1, checkpoint_at_end: false}
  config:
    framework: torch
    gamma: 0.97
    lambda: 0.9
    lr: 3e-4
    num_workers: 0
    num_sgd_iter: 2
    sgd_minibatch_size: 32
    train_batch_size: 64
    observation_filter: NoFilter
    model: {fcnet_hiddens: [7], vf_share_layers: true}
"""


def loaded(checkpoint: Path):
    from ray.rllib.algorithms.algorithm import Algorithm

    return Algorithm.from_checkpoint(str(checkpoint))


def results(folder: Path) -> list[dict]:
    return [json.loads(line) for file in folder.glob("results/*/*/result.json") for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def old_run(tmp_path_factory):
    """The old-shape file, stopped by the command line after two iterations."""
    folder = tmp_path_factory.mktemp("old_shape")
    (folder / "ppo.yaml").write_text(OLD_SHAPE)
    return folder, rllib(folder, "train", "file", "ppo.yaml", "--stop", '{"training_iteration": 2}', "--set", "gamma=0.5")


def test_an_old_yaml_trains_and_says_what_happened(old_run) -> None:
    folder, done = old_run
    assert done.returncode == 0, done.stderr
    assert [result["training_iteration"] for result in results(folder)] == [1, 2]
    assert "iteration 1 · " in done.stdout
    assert "reward " in done.stdout
    assert "Your training finished.\nBest available checkpoint for each trial:\n" in done.stdout
    assert f"rllib train file ppo.yaml --restore {checkpoints(folder)[-1]}" in done.stdout
    for old, new in {"num_sgd_iter": "num_epochs", "num_workers": "num_env_runners", "model": "model_config"}.items():
        assert done.stderr.count(f"config.{old} is now called {new}\n") == 1
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("results/*/*/summary.json"))


def test_the_files_checkpoint_config_is_kept(old_run) -> None:
    folder, _ = old_run
    assert [path.name for path in checkpoints(folder)] == ["checkpoint_000000", "checkpoint_000001"]


@pytest.mark.usefixtures("ray_session")
def test_a_checkpoint_loads_with_every_setting(old_run) -> None:
    folder, _ = old_run
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


def test_restore_continues_a_checkpoint(old_run, tmp_path: Path) -> None:
    folder, _ = old_run
    (tmp_path / "ppo.yml").write_text(OLD_SHAPE)
    checkpoint = str(checkpoints(folder)[-1])
    done = rllib(tmp_path, "train", "file", "ppo.yml", "--stop", '{"training_iteration": 3}', "--restore", checkpoint)
    assert done.returncode == 0, done.stderr
    assert [result["training_iteration"] for result in results(tmp_path)] == [3]


PYTHON_FILE = """
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig

from line_env import Line


def report(*, result, **kwargs):
    result["rapo"] = {"accuracy_after": 0.5, "retrievals": 3}


config = (
    PPOConfig()
    .environment(Line)
    .callbacks(on_train_result=report)
    .env_runners(num_env_runners=0)
    .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1, lr=tune.grid_search([1e-3, 1e-4]))
)
stop = {"training_iteration": 1}
"""

LINE_ENV = """
import gymnasium


class Line(gymnasium.Env):
    def __init__(self, config=None):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self.action_space = gymnasium.spaces.Discrete(2)
        self.fails = (config or {}).get("fails", False)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.observation_space.low, {}

    def step(self, action):
        if self.fails:
            raise RuntimeError("the line is broken")
        self.count += 1
        return self.observation_space.low, 1.0, self.count == 5, False, {}
"""


def test_a_python_file_with_a_grid_imports_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "line.py").write_text(PYTHON_FILE)
    (tmp_path / "files" / "line_env.py").write_text(LINE_ENV)
    done = rllib(tmp_path, "train", "file", "files/line.py")
    assert done.returncode == 0, done.stderr
    assert sorted(result["config"]["lr"] for result in results(tmp_path)) == [1e-4, 1e-3]
    assert {path.parent.parent.name for path in checkpoints(tmp_path)} == {"line"}
    assert len(checkpoints(tmp_path)) == 2  # at the end, by default
    for checkpoint in checkpoints(tmp_path):  # results with an accuracy are summarized
        summary = json.loads((checkpoint.parent / "summary.json").read_text())
        known = {key: value for key, value in summary.items() if value is not None}
        assert known == {"accuracy_after": 0.5, "retrievals": 3, "checkpoint": str(checkpoint), "warnings": []}
        assert len(summary) == 8
    assert done.stdout.count("accuracy_after       0.500") == 2


def test_a_failed_trial_is_exit_status_1_with_the_error(tmp_path: Path) -> None:
    (tmp_path / "line_env.py").write_text(LINE_ENV)
    good = f"{{run: PPO, env: line_env.Line, stop: {{training_iteration: 1}}, config: {{{SMALL_PPO}}}}}"
    bad = good.replace("num_env_runners", "env_config: {fails: true}, num_env_runners")
    (tmp_path / "both.yaml").write_text(f"bad: {bad}\ngood: {good}\n")
    done = rllib(tmp_path, "train", "file", "both.yaml")
    assert done.returncode == 1
    assert "the line is broken" in done.stderr
    (error_file,) = tmp_path.glob("results/bad/*/error.txt")
    assert f"(all of it: {error_file})" in done.stderr
    # the other experiment was trained all the same, and its results are on disk
    assert [result["training_iteration"] for result in results(tmp_path)] == [1]


def test_ctrl_c_saves_the_running_iteration(tmp_path: Path) -> None:
    grid = "lr: {grid_search: [1e-3, 1e-4]}"
    text = f"run: PPO, env: CartPole-v1, checkpoint_config: {{checkpoint_at_end: false}}, config: {{{SMALL_PPO}, {grid}}}"
    (tmp_path / "endless.yaml").write_text(f"endless: {{{text}}}\nnever: {{{text}}}\n")
    # one CPU: the second trial of the grid waits, and must not start any more
    arguments = ["train", "file", "endless.yaml", "--storage-path", "results", "--ray-num-cpus", "1"]
    process = started(tmp_path, tmp_path / "out.txt", *arguments)
    try:
        wait_for_text(tmp_path / "out.txt", "iteration 2 · ", process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Ray's processes get it too
        status = process.wait(timeout=60)
    finally:
        process.kill()
    said = (tmp_path / "out.txt").read_text()
    assert status == 0, said
    assert "Stopping after the running iteration" in said
    assert "Your training was interrupted." in said
    assert "Traceback" not in said
    (checkpoint,) = checkpoints(tmp_path)
    assert not (tmp_path / "results" / "never").exists()
    algorithm = loaded(checkpoint)
    assert algorithm.iteration == max(result["training_iteration"] for result in results(tmp_path))
    algorithm.stop()
