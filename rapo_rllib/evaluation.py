"""Held-out evaluation, greedy and without retrieval, on the env runners that exist."""

from __future__ import annotations

from typing import Any

from ray.rllib.callbacks.utils import make_callback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS

from rapo_rllib.dispatch import sample_questions
from rapo_rllib.metrics_log import logged_metrics
from rapo_rllib.rollout_metrics import SampleResult, rollout_metrics


def evaluate_on_env_runners(algorithm: Any, eval_env_runner_group: Any) -> tuple[dict[str, Any], int, int]:
    """RLlib's ``custom_evaluation_function``: the first ``evaluation_duration`` held-out questions, one trajectory each.

    Runs on the evaluation env runners if there are any (``evaluation_num_env_runners``), else on those that train; either has
    confirmed the current weights first.
    """
    config = algorithm.config
    group = eval_env_runner_group if eval_env_runner_group is not None else algorithm.env_runner_group
    algorithm.sync_engines(group)
    questions = algorithm.test_questions[: config.evaluation_duration]
    result = sample_questions(
        group, questions, restore=lambda: algorithm.restore_env_runners(group), explore=False, group_size=1
    )
    values = evaluation_metrics(result)
    algorithm.metrics.aggregate([logged_metrics(values), *result.logged], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
    return values, result.num_env_steps, result.num_env_steps


def evaluate_with_callbacks(algorithm: Any) -> dict[str, Any]:
    """``Algorithm.evaluate`` without the weight sync that RLlib puts before it: the confirmed one of this plugin is enough.

    Calls ``on_evaluate_start``, the config's ``custom_evaluation_function`` (``evaluate_on_env_runners`` unless a user set
    another), and ``on_evaluate_end``.
    """
    config, logger = algorithm.config, algorithm.metrics

    def call(name: str, **kwargs: Any) -> None:
        make_callback(
            name,
            callbacks_objects=algorithm.callbacks,
            callbacks_functions=getattr(config, f"callbacks_{name}"),
            kwargs={"algorithm": algorithm, "metrics_logger": logger, **kwargs},
        )

    call("on_evaluate_start")
    config.custom_evaluation_function(algorithm, algorithm.eval_env_runner_group)
    results: dict[str, Any] = logger.peek(key=EVALUATION_RESULTS, default={}, latest_merged_only=True)
    call("on_evaluate_end", evaluation_metrics=results)
    return results


def evaluation_metrics(result: SampleResult) -> dict[str, float]:
    """What matters on held-out questions; ``num_episodes`` is their number."""
    values = rollout_metrics(result)
    kept = {name: value for name, value in values.items() if not name.startswith("retrieval/")}
    return {**kept, "num_episodes": float(len(result.groups))}
