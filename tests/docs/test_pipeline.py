"""tuned_examples/rapo_pipeline.py, as far as it goes without an engine: config, environment, tool, reward, callback."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pages import REPOSITORY
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.experiments import read_experiments
from rapo_rllib.types import Step, Trajectory


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(REPOSITORY / "tuned_examples")
    return importlib.import_module("rapo_pipeline")


def test_preflight(pipeline: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline.config.copy(copy_frozen=False).preflight()
    train, test = pipeline.config.question_source.questions("train"), pipeline.config.question_source.questions("test")
    assert (len(train), len(test)) == (2000, 100)
    assert {question.id for question in train}.isdisjoint(question.id for question in test)


def test_the_command_line_finds_the_config() -> None:
    (spec,) = read_experiments(REPOSITORY / "tuned_examples" / "rapo_pipeline.py", RunOptions())
    assert spec.base_config.callbacks_class.__name__ == "CountsTools"
    assert spec.stop == {"training_iteration": 20}


def test_an_option_changes_the_model_and_leaves_the_rest_of_it() -> None:
    options = RunOptions(overrides=[("model.name_or_path", "another")])
    (spec,) = read_experiments(REPOSITORY / "tuned_examples" / "rapo_pipeline.py", options)
    config = spec.algorithm.get_default_config().update_from_dict(spec.config)  # as a trial of Tune does
    assert config.language_model == {"name_or_path": "another", "logits_chunk_size": 128, "gradient_checkpointing": True}


@pytest.mark.parametrize(("call", "output"), [("3.5 m in cm", "350"), ("2 km in m", "2000"), ("5 mm in cm", "0.5")])
def test_the_tool(pipeline: ModuleType, call: str, output: str) -> None:
    assert pipeline.convert(call) == output


def play(env: Any, steps: tuple[str, ...]) -> tuple[float, dict[str, Any]]:
    total, info = 0.0, {}
    for text in steps:
        _, reward, terminated, truncated, info = env.step(text)
        total += reward
        if terminated or truncated:
            break
    return total, info


def test_the_expert_earns_the_reward_and_dawdling_costs(pipeline: ModuleType) -> None:
    env = pipeline.Units(pipeline.config.env_config)
    expert = next(iter(pipeline.config.question_source.expert_trajectories()))
    call, answer = expert.steps[0].split("\n<result>")[0], expert.steps[1]
    env.reset(options={"question": expert.question})
    reward, info = play(env, (call, answer))
    assert (reward, info["correct"]) == (1.0, True)
    env.reset(options={"question": expert.question})
    assert play(env, (call, call, answer))[0] == pytest.approx(0.9)
    env.reset(options={"question": expert.question})
    assert play(env, ("<answer>\\boxed{-1}</answer>",))[0] == 0.0


def test_the_callback_counts_calls(pipeline: ModuleType) -> None:
    question = pipeline.config.question_source.questions("train")[0]
    steps = [Step(0, 1, "<convert>1 m in cm</convert>", tool="convert"), Step(1, 2, "<answer>100</answer>")]
    trajectory = Trajectory(question.id, [0], steps=steps, end="answer")
    logger = MetricsLogger(root=True)
    episode = SingleAgentEpisode(observations=[question.text], infos=[{"trajectory": trajectory}])
    pipeline.CountsTools().on_episode_end(episode=episode, metrics_logger=logger)
    assert logger.peek("unit_calls") == 1.0
    assert pipeline.config.custom_evaluation_function is pipeline.evaluate
