"""RAPO inside an RLlib pipeline of your own: environment, tool, reward, callbacks and evaluation, in one Python file.

The policy converts lengths ("How many cm are 3.5 m?") with a tool that knows the units. Everything below the classes is what an
RLlib script has for any algorithm: a config, Tune, results.

    rllib train file tuned_examples/rapo_pipeline.py        # finds ``config`` and ``stop``
    python tuned_examples/rapo_pipeline.py                  # does the same by ``ray.tune``
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from ray import tune
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS

from rapo_rllib import RAPOConfig
from rapo_rllib.envs.base import LazyQuestions
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.evaluation.held_out import evaluate_on_env_runners
from rapo_rllib.monitoring.metrics_log import logged_metrics
from rapo_rllib.rewards import Episode
from rapo_rllib.types import ExpertTrajectory, Question

MILLIMETRES = {"mm": 1, "cm": 10, "m": 1000, "km": 1_000_000}
TRAIN, TEST = 2000, 100


def convert(input: str) -> str:
    """Convert a length. The function's name is the tool's tag; what it raises, the policy reads.

    Args:
        input: number, unit, `in` and the wanted unit, as in `3.5 m in cm`, which becomes `350`.
    """
    amount, unit, _, wanted = input.split()
    return f"{float(amount) * MILLIMETRES[unit] / MILLIMETRES[wanted]:g}"


def right_and_brief(answer: str | None, question: Question, episode: Episode, max_steps: int = 2) -> dict[str, float]:
    """The reward: 1 for the right number, less 0.1 for every step above ``max_steps``."""
    correct = answer is not None and answer.strip() == question.answer
    return {"correct": float(correct), "brief": -0.1 * max(len(episode.steps) - max_steps, 0)}


class UnitQuestions(LazyQuestions):
    """Question ``i`` depends on ``i`` alone; the test questions begin where those for training end."""

    def __init__(self, split: str) -> None:
        super().__init__(TRAIN if split == "train" else TEST)
        self._first = 0 if split == "train" else TRAIN

    def call(self, index: int) -> str:
        """What the tool would be asked."""
        rng = random.Random(self._first + index)
        unit, wanted = rng.sample(sorted(MILLIMETRES), 2)
        return f"{rng.randint(2, 99) / 2:g} {unit} in {wanted}"

    def make(self, index: int) -> Question:
        """Question ``index``."""
        amount, unit, _, wanted = self.call(index).split()
        text = f"How many {wanted} are {amount} {unit}?"
        return Question(id=f"unit-{self._first + index}", text=text, answer=convert(self.call(index)), source="units")


class Units(ToolEnv):
    """The environment. ``ToolEnv`` runs the tool and asks the scorer; questions, and an expert for the buffer, are ours."""

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> UnitQuestions:
        """The questions of ``split``."""
        return UnitQuestions(split)

    @classmethod
    def expert_trajectories(cls, env_config: Mapping[str, Any]) -> Iterator[ExpertTrajectory]:
        """What the Step-Trace Buffer is built from: one call, then the answer."""
        source = UnitQuestions("train")
        for index, question in enumerate(source):
            call = f"<convert>{source.call(index)}</convert>\n<result>\n{question.answer}\n</result>\n"
            yield ExpertTrajectory(question, (call, f"<answer>\\boxed{{{question.answer}}}</answer>"), 1.0, "units/expert")


class CountsTools(RLlibCallback):
    """A callback as for any algorithm: a metric of each episode, and a line after each iteration."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        """How often the policy called the tool; the whole trajectory is in the last info."""
        trajectory = episode.get_infos(-1)["trajectory"]
        metrics_logger.log_value("unit_calls", float(sum(step.tool is not None for step in trajectory.steps)))

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """Where schedulers and stop criteria look."""
        result["unit_calls"] = result.get(ENV_RUNNER_RESULTS, {}).get("unit_calls")


def evaluate(algorithm: Any, eval_env_runner_group: Any) -> tuple[dict[str, Any], int, int]:
    """A custom evaluation: the plugin's own, and one number more."""
    values, env_steps, agent_steps = evaluate_on_env_runners(algorithm, eval_env_runner_group)
    more = logged_metrics({"error_rate": 1 - values["accuracy"]})  # merged: RLlib refuses what is logged beside merged metrics
    algorithm.metrics.aggregate([more], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
    return values, env_steps, agent_steps


config = (
    RAPOConfig()
    .environment(
        Units,
        env_config={"tools": ["rapo_pipeline:convert"], "scorer": "rapo_pipeline:right_and_brief", "require_boxed": True},
    )
    .training(
        model={"name_or_path": "smollm2-135m-instruct", "logits_chunk_size": 128, "gradient_checkpointing": True},
        engine={"max_num_seqs": 64, "kv_cache_gib": 0.5, "enforce_eager": True},
        step_trace_buffer={"uri": "./unit_traces.db"},
        questions_per_step=8,
        group_size=8,
        num_hybrid=4,
        max_prompt_tokens=512,
        max_response_tokens=256,
        max_tokens_per_micro_batch=2048,
        lr=1e-5,
    )
    .callbacks(CountsTools)
    .evaluation(evaluation_interval=5, evaluation_duration=TEST, custom_evaluation_function=evaluate)
    .debugging(seed=0)
)
stop = {"training_iteration": 20}


def main() -> None:
    """Train by Tune, as any algorithm."""
    run = tune.RunConfig(stop=stop, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True))
    tune.Tuner("RAPO", param_space=config, run_config=run).fit()


if __name__ == "__main__":
    main()
