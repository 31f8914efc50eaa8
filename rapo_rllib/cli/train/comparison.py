"""Compare the trials of a sweep: a table, best first, and the name of the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rapo_rllib.monitoring.metrics_flat import flattened

METRICS = (  # the first that every trial which has not failed reports
    "evaluation/env_runners/accuracy",
    "evaluation/env_runners/episode_return_mean",
    "env_runners/episode_return_mean",
)


def goal_of(scheduler: Mapping[str, Any], checkpoint_config: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the metric that an experiment names, and ``max`` or ``min``: its scheduler's, else that of its checkpoints."""
    if metric := scheduler.get("metric"):
        return str(metric), str(scheduler.get("mode", "max"))
    metric = checkpoint_config.get("checkpoint_score_attribute")
    return (None if metric is None else str(metric)), str(checkpoint_config.get("checkpoint_score_order", "max"))


def last_value(trial: Any, metric: str) -> float:
    """Return what a trial reported last of a metric, also where its last result has none; NaN: it never did."""
    value = flattened(trial.last_result or {}).get(metric, trial.metric_analysis.get(metric, {}).get("last"))
    return float(value) if isinstance(value, int | float) else math.nan


def ranked(trials: Sequence[Any], metric: str | None, mode: str) -> tuple[str, list[Any]] | None:
    """Order trials by what they reported last, best first; those that failed or reported nothing come last.

    Args:
        trials: of one experiment.
        metric: that the experiment names; None: the first of ``METRICS`` that all report.
        mode: max or min.

    Returns:
        The metric and the trials; None where nothing can be compared.
    """
    ended = [trial for trial in trials if trial.status != "ERROR"]
    names = METRICS if metric is None else (metric,)
    for name in names:
        values = [last_value(trial, name) for trial in ended]
        if values and not (all if metric else any)(map(math.isnan, values)):
            return name, sorted(trials, key=partial(_place, metric=name, mode=mode))
    return None


def _place(trial: Any, metric: str, mode: str) -> tuple[bool, float]:
    value = last_value(trial, metric)
    if trial.status == "ERROR" or math.isnan(value):
        return True, 0.0
    return False, value if mode == "min" else -value


def comparison(trials: Sequence[Any], metric: str | None = None, mode: str = "max") -> list[str]:
    """Return the lines of the table of a sweep's trials and the name of the best; none for a single trial."""
    if len(trials) < 2:
        return []
    found = ranked(trials, metric, mode)
    if found is None:
        named = metric or "a reward or an accuracy"
        return [f"The trials cannot be compared: not all of them reported {named}."]
    name, order = found
    lines = [f"Trials by {name} ({'highest' if mode == 'max' else 'lowest'} first):"]
    for trial in order:
        result = trial.last_result or {}
        value = "failed" if trial.status == "ERROR" else f"{last_value(trial, name):.4g}"
        iterations, seconds = result.get("training_iteration", 0), float(result.get("time_total_s", 0.0))
        lines.append(f"  {value:>8}  {iterations:>4} iterations  {seconds:>8.1f} s  {trial}  {_tag(trial)}".rstrip())
    lines.append(f"Best trial: {order[0]} ({name} {last_value(order[0], name):.4g})")
    return lines


def _tag(trial: Any) -> str:
    """The values that Tune gave this trial, without its number."""
    return str(trial.experiment_tag or "").partition("_")[2]
