"""Evaluation during training: real environment, rollout and metrics; the engine is scripted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from scripted import ByteTokenizer, ScriptedEngine

from rapo_rllib import RAPOConfig
from rapo_rllib.env_runner.env_runner import RAPOEnvRunner
from rapo_rllib.evaluation.held_out import evaluate_with_callbacks
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop


class ScriptedRunner(RAPOEnvRunner):
    """Knows what is even."""

    def _make_engine(self) -> ScriptedEngine:
        def answer(text: str) -> str:
            number = int(re.findall(r"number (\d+)", text)[-1])
            return f"<answer>\\boxed{{{number if number % 2 == 0 else 0}}}</answer>"

        return ScriptedEngine(answer)

    def _make_loop(self) -> RolloutLoop:
        protocol = self.config.settings.protocol
        envs = EnvPool(self.config.question_source.env_maker(), protocol.answer_tag)
        return RolloutLoop(self.engine, ChatProtocol(ByteTokenizer(), protocol, ()), envs, self.config.settings.rollout, None)


def evaluated(folder: Path, test_sets: dict[str, list[int]], duration: int) -> dict[str, Any]:
    """What RLlib reports under ``evaluation/env_runners``."""
    paths = {name: folder / f"{name}.jsonl" for name in test_sets}
    for name, numbers in test_sets.items():
        rows = [{"question": f"Which is number {number}?", "answer": str(number)} for number in numbers]
        paths[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    env_config = {"dataset": "unused.jsonl", "test_dataset": [str(path) for path in paths.values()], "tools": []}
    config = RAPOConfig().environment("rapo/questions", env_config=env_config)
    config.evaluation(evaluation_interval=1, evaluation_duration=duration)
    runner = ScriptedRunner(config=config)
    algorithm = SimpleNamespace(
        config=config,
        test_questions=list(config.question_source.questions("test")),
        metrics=MetricsLogger(root=True),
        callbacks=[RLlibCallback()],
        eval_env_runner_group=None,
        env_runner_group=SimpleNamespace(num_remote_env_runners=lambda: 0, local_env_runner=runner),
        sync_engines=lambda group: None,
        keep_held_out=lambda result: None,
    )
    try:
        return evaluate_with_callbacks(algorithm)[ENV_RUNNER_RESULTS]
    finally:
        runner.loop.close()


def test_each_of_several_test_sets_has_its_accuracy(tmp_path: Path) -> None:
    found = evaluated(tmp_path, {"mixed": list(range(1, 41)), "odd": [1, 3]}, duration=12)
    assert (found["num_episodes"], found["mixed"]["num_episodes"], found["odd"]["num_episodes"]) == (12, 10, 2)
    assert (found["mixed"]["accuracy"], found["odd"]["accuracy"]) == (0.5, 0.0)
    assert found["accuracy"] == pytest.approx(5 / 12)
    assert 0.1 < found["accuracy_low"] < 5 / 12 < found["accuracy_high"] < 0.8
    assert 0.1 < found["mixed"]["accuracy_low"] < 0.5 < found["mixed"]["accuracy_high"] < 0.9
    assert (found["odd"]["accuracy_low"], found["odd"]["accuracy_high"]) == (0.0, 0.0)


def test_a_test_set_that_is_called_like_a_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"env_config.test_dataset: 'reward' is also the name of a metric: rename"):
        evaluated(tmp_path, {"reward": [2]}, duration=1)
