"""Evaluation on held-out questions during training: greedy, without retrieval, on env runners that exist anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.rllib.callbacks.utils import make_callback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS

from rapo_rllib.env_runner.dispatch import sample_questions
from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics
from rapo_rllib.evaluation.metrics import bootstrap_interval
from rapo_rllib.monitoring.metrics_log import logged_metrics
from rapo_rllib.types import TrajectoryGroup


def evaluate_on_env_runners(algorithm: Any, eval_env_runner_group: Any) -> tuple[dict[str, Any], int, int]:
    """Evaluate on ``evaluation_duration`` held-out questions, one trajectory each: RLlib's ``custom_evaluation_function``.

    If the questions come from several benchmarks, the benchmarks take turns, so that each has its share of the questions.

    Runs on the evaluation env runners if there are any (``evaluation_num_env_runners``), else on the training env runners.
    Either way the env runners have confirmed the current weights before they answer.
    """
    config = algorithm.config
    group = eval_env_runner_group if eval_env_runner_group is not None else algorithm.env_runner_group
    algorithm.sync_engines(group)
    questions = algorithm.test_questions[: config.evaluation_duration]
    result = sample_questions(
        group,
        questions,
        restore=lambda: algorithm.bring_back_env_runners(group),
        timeout_s=config.evaluation_sample_timeout_s,
        retrieval_prob=0.0,
        explore=False,
        group_size=1,
    )
    algorithm.keep_held_out(result)
    result.require_usable()
    values = evaluation_metrics(result)
    algorithm.metrics.aggregate([logged_metrics(values), *result.logged], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
    return values, result.num_env_steps, result.num_env_steps


def evaluate_with_callbacks(algorithm: Any) -> dict[str, Any]:
    """Evaluate as RLlib does, but skip its preceding weight sync: this plugin's own, confirmed weight sync is enough.

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
    (config.custom_evaluation_function or evaluate_on_env_runners)(algorithm, algorithm.eval_env_runner_group)
    results: dict[str, Any] = logger.peek(key=EVALUATION_RESULTS, default={}, latest_merged_only=True)
    call("on_evaluate_end", evaluation_metrics=results)
    return results


def evaluation_metrics(result: SampleResult) -> dict[str, float]:
    """Compute metrics of held-out questions: over all questions, and ``<benchmark>/accuracy`` etc. over each benchmark's.

    ``num_episodes`` is the number of questions; ``accuracy_low`` and ``accuracy_high`` bound a 95 % interval of ``accuracy``.

    Raises:
        ValueError: a benchmark has the name of a metric.
    """
    values = rollout_metrics(result)
    kept = {name: value for name, value in values.items() if not name.startswith("retrieval/")} | _accuracy(result.groups)
    taken = {name.partition("/")[0] for name in kept}
    for benchmark in dict.fromkeys(group.question.benchmark for group in result.groups if group.question.benchmark):
        if benchmark in taken:
            raise ValueError(f"env_config.test_dataset: {benchmark!r} is also the name of a metric: rename this data set")
        groups = [group for group in result.groups if group.question.benchmark == benchmark]
        kept |= {f"{benchmark}/{name}": value for name, value in _accuracy(groups).items()}
    return kept


def _accuracy(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    shares = [sum(t.correct for t in group.trajectories) / len(group.trajectories) for group in groups]
    low, high = bootstrap_interval(shares)
    counts = {"num_episodes": float(len(groups))}
    return {"accuracy": sum(shares) / len(shares), "accuracy_low": low, "accuracy_high": high, **counts}
