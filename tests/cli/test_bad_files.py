"""Mistakes of a user: one clear message that names file, key and fix, exit status 1, and Ray never starts."""

import json
from pathlib import Path

import pytest
import yaml
from cli_runs import refused, said


def ppo(config: str = "", rest: str = "", env: str = "CartPole-v1") -> str:
    return f"cart:\n  run: PPO\n  env: {env}\n  {rest}\n  config: {{{config}}}\n"


RAPO = "math:\n  run: RAPO\n  env: rapo/word_problems\n  config: {model: {name_or_path: smollm2-135m-instruct}, %s}\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["at least one experiment", "run, env, stop, config"]),
        ("- 1\n", ["at least one experiment"]),
        ("cart:\n  run: PPO\n  env: [CartPole-v1\n", ["line 4, column 1", "not YAML"]),
        ("cart:\n  run: PPO\n  run: DQN\n", ["line 3, column 3", "'run' is given twice"]),
        ("cart: 3\n", ["'cart'", "must be a mapping"]),
        ("cart:\n  env: CartPole-v1\n", ["'cart'", "run is missing", "run: RAPO"]),
        ("cart:\n  run: PPOO\n", ["'cart'", "run = 'PPOO'", "did you mean PPO?"]),
        ("cart:\n  run: xyzzy\n", ["run = 'xyzzy'", "known are", "RAPO"]),
        ("cart:\n  run: PPO\n", ["env is missing", "env: CartPole-v1"]),
        (ppo(env="CartPool-v1"), ["env = 'CartPool-v1'", "Did you mean: `CartPole`"]),
        (ppo(env="no_such_package.Env"), ["env = 'no_such_package.Env'", "No module named 'no_such_package'"]),
        (ppo(rest="stopp: {training_iteration: 1}"), ["'cart'", "stopp", "did you mean 'stop'"]),
        (ppo(rest="stop: {training_iteration: many}"), ["stop.training_iteration = 'many'", "must be a number"]),
        (ppo(rest="stop: {env_runners: {num_episodes: true}}"), ["stop.env_runners/num_episodes = True", "must be a number"]),
        (ppo(rest="stop: {training_iteration: [1]}"), ["stop.training_iteration = [1]", "must be a number"]),
        (ppo(rest="stop: 3"), ["stop = 3", "must be a mapping"]),
        (ppo(rest="loggers: [{type: mlfow}]"), ["'cart'", "loggers[0].type = 'mlfow'", "one of wandb, mlflow"]),
        (ppo(rest="num_samples: few"), ["num_samples = 'few'", "whole number"]),
        (ppo(rest="num_samples: 0"), ["num_samples = 0", "at least 1"]),
        (ppo(rest="resources_per_trial: {cpu: 1}"), ["unknown key 'resources_per_trial'"]),
        (ppo(rest="restore: /no/such/checkpoint"), ["restore = '/no/such/checkpoint'", "no checkpoint folder"]),
        (ppo(rest="checkpoint_config: {num_to_kep: 1}"), ["checkpoint_config", "num_to_kep", "num_to_keep"]),
        (ppo(rest="checkpoint_config: {num_to_keep: 0}"), ["num_to_keep"]),
        (ppo(rest="checkpoint_config: {checkpoint_score_attribute: min-loss}"), ["'min-loss'", "checkpoint_score_order: min"]),
        (ppo(rest="checkpoint_config: {checkpoint_frequency: 12:30}"), ["checkpoint_frequency = '12:30'", "whole number"]),
        (ppo(rest="stop: {training_iteration: 12:30}"), ["stop.training_iteration = '12:30'", "must be a number"]),
        (ppo("lr: {{ lr }}"), ["line 5, column 17", "a template {{ … }} must be filled in"]),
        (RAPO % "transcripts: 12:30", ["transcripts = '12:30'", "true or false"]),
        (ppo("gama: 0.9"), ["'cart'", "gama", "did you mean", "gamma"]),
        (ppo("lr: {grid_search: [1, 2]}, entropy_coef: 0.1"), ["entropy_coef", "entropy_coeff"]),
        (ppo("enable_rl_module_and_learner: false"), ["old API stack", "remove api_stack"]),
        (ppo("num_rollout_workers: 1"), ["unknown key 'config.num_rollout_workers'", "did you mean"]),
        (ppo("train_batch_size_per_learner: 32, minibatch_size: 64"), ["minibatch_size", "64", "32"]),
        (ppo("callbacks: no_such_package.Callbacks"), ["no_such_package"]),
    ],
)
def test_a_bad_yaml_is_refused(tmp_path: Path, monkeypatch, text: str, parts: list[str]) -> None:
    message = refused(monkeypatch, tmp_path / "bad.yaml", text)
    assert [part for part in parts if part not in message] == []


PPO = "from ray.rllib.algorithms.ppo import PPOConfig\nconfig = PPOConfig()"
OLD = ".environment('CartPole-v1').api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x = 1\n", ["must define `config`"]),
        ("config = {'lr': 1}\n", ["must define `config`", "AlgorithmConfig"]),
        ("\nimport no_such_package\n", ["line 2", "No module named 'no_such_package'"]),
        ("config = (\n", ["line 1", "SyntaxError"]),
        (f"{PPO}\n", ["env is missing"]),
        (f"{PPO}.environment('CartPole-v1')\nstop = 3\n", ["`stop` = 3", "must be a dict"]),
        (PPO + OLD, ["old API stack", "remove api_stack"]),
    ],
)
def test_a_bad_python_file_is_refused(tmp_path: Path, monkeypatch, text: str, parts: list[str]) -> None:
    message = refused(monkeypatch, tmp_path / "bad.py", text)
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.yaml", None, "no such file"),
        ("job.json", "{}", "cannot train from a .json: give a .yaml, .yml or .py file"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, monkeypatch, name: str, text: str | None, message: str) -> None:
    assert message in refused(monkeypatch, tmp_path / name, text)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--set", "gama=1"], ["gama", "gamma"]),
        (["--set", "lr.schedule=1"], ["--set lr: its value is 0.001, which has no keys"]),
        (["--set", "env=CartPool-v1"], ["env = 'CartPool-v1'"]),
        (["--restore", "nowhere"], ["restore = 'nowhere'"]),
        (["--set", "checkpoint_config.num_to_keep=0"], ["num_to_keep"]),
        (["--stop", '{"training_iteration": "x"}'], ["stop.training_iteration = 'x'"]),
        (["--ray-address", "127.0.0.1:1"], ["--ray-address 127.0.0.1:1", "no Ray cluster there"]),
        (["--ray-address", "127.0.0.1:1", "--ray-num-cpus", "2"], ["--ray-num-cpus", "leave it out"]),
        (["--set", "scheduler.type=lifo"], ["scheduler.type = 'lifo'", "fifo"]),
        (["--set", "lr={loguniform: [1, 0.1]}"], ["config.lr = {loguniform: [1, 0.1]}"]),
    ],
)
def test_a_bad_option_is_refused(tmp_path: Path, monkeypatch, options: list[str], parts: list[str]) -> None:
    message = refused(monkeypatch, tmp_path / "good.yaml", ppo("lr: 0.001"), *options)
    assert [part for part in parts if part not in message] == []


def test_a_ray_that_does_not_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is too busy; Ray's own error is of no type."""

    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup")

    message = refused(monkeypatch, tmp_path / "good.yaml", ppo("lr: 0.001"), init=init)
    assert "Ray does not start: The current node timed out during startup" in message


@pytest.mark.parametrize("options", [["--stop", "{"], ["--stop", "3"], ["--set", "gamma"], ["--set", "=1"]])
def test_an_option_that_cannot_be_read_is_a_usage_error(options: list[str]) -> None:
    assert options[0] in said("train", "file", "good.yaml", *options, status=2)


QUESTIONS = {"env": "rapo/questions", "env_config": {"dataset": "rows.jsonl"}}
ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?"}]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model": {"name_or_path": "nobody/no-model"}}, ["model.name_or_path", "nobody/no-model", "cannot be loaded"]),
        ({"grup_size": 4}, ["'config.grup_size'", "did you mean 'config.group_size'"]),
        ({"questions_per_step": 1, "num_minibatches": 2}, ["num_minibatches = 2 is more than questions_per_step = 1"]),
        ({"step_trace_buffer": {"uri": "http://127.0.0.1:1"}}, ["step_trace_buffer.uri", "http://127.0.0.1:1"]),
        ({"step_trace_buffer": {"uri": "./no.db", "traces": None}}, ["step_trace_buffer.traces = None", "./no.db"]),
        ({"env_config": {"stepps": [1, 2]}}, ["'env_config.stepps'", "did you mean 'env_config.steps'"]),
        ({"env": "rapo/word_problem"}, ["rapo/word_problem"]),
        ({**QUESTIONS, "env_config": {"dataset": "no.jsonl"}}, ["env_config.dataset", "no.jsonl"]),
        (QUESTIONS, ["rows.jsonl, row 2", "answer"]),
    ],
    ids=lambda value: None if isinstance(value, list) else "-".join(value),
)
def test_a_bad_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, parts: list[str]) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.chdir(tmp_path)
    config = {"step_trace_buffer": {"uri": "./traces.db"}, "evaluation_interval": None, **changes}
    job = {"run": "RAPO", "env": config.pop("env", "rapo/word_problems"), "config": config}
    text = yaml.safe_dump({"job": job})
    message = refused(monkeypatch, tmp_path / "job.yaml", text, "--storage-path", "results")
    assert [part for part in ("'job'", *parts) if part not in message] == []
    assert not (tmp_path / "results").exists()
