"""Compare the trials of a sweep: a table, best first, and the name of the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rapo_rllib.monitoring.metrics_flat import flattened

METRICS = (  # the first that every trial which has not failed reports
    "evaluation/env_runners/accuracy",
    "evaluation/env_runners/episode_return_mean",
    "env_runners/episode_return_mean",
)


def written(settings: Mapping[str, Any]) -> str:
    """Write in what a trial differs from others; Tune's own tag says ``lr=0.0000`` of a rate of 1e-6.

    >>> written({"lr": 1e-6, "model/lora/rank": 8})
    'lr=1e-06,rank=8'
    >>> written({"a/rank": 4, "b/rank": 8})
    'a/rank=4,b/rank=8'
    """
    last = {key: key.rpartition("/")[2] for key in settings}
    names = {key: name if list(last.values()).count(name) == 1 else key for key, name in last.items()}
    return ",".join(f"{names[key]}={f'{value:g}' if isinstance(value, float) else value}" for key, value in settings.items())


def comparison(trials: Sequence[Any], metric: str | None = None, mode: str = "max") -> list[str]:
    """Return the lines of the table of a sweep's trials and the name of the best; none for a single trial.

    Args:
        trials: of one experiment; those that failed or reported nothing come last.
        metric: that the experiment names; None: the first of ``METRICS`` that all report.
        mode: max or min.
    """
    if len(trials) < 2:
        return []
    ended = [trial for trial in trials if trial.status != "ERROR"]
    missing = {name: [math.isnan(last_value(trial, name)) for trial in ended] for name in ((metric,) if metric else METRICS)}
    comparable = [name for name, gaps in missing.items() if gaps and not (all(gaps) if metric else any(gaps))]
    if not comparable:
        return [f"The trials cannot be compared: not all of them reported {metric or 'a reward or an accuracy'}."]
    name = comparable[0]

    def place(trial: Any) -> float:
        value = last_value(trial, name)
        worst = trial.status == "ERROR" or math.isnan(value)
        return math.inf if worst else value if mode == "min" else -value

    order = sorted(trials, key=place)
    lines = [f"Trials by {name} ({'highest' if mode == 'max' else 'lowest'} first):"]
    for trial in order:
        result = trial.last_result or {}
        value = "failed" if trial.status == "ERROR" else f"{last_value(trial, name):.4g}"
        iterations, seconds = result.get("training_iteration", 0), float(result.get("time_total_s", 0.0))
        settings = written(trial.evaluated_params)
        lines.append(f"  {value:>8}  {iterations:>4} iterations  {seconds:>8.1f} s  {trial}  {settings}".rstrip())
    return [*lines, f"Best trial: {order[0]} ({name} {last_value(order[0], name):.4g})"]


def last_value(trial: Any, metric: str) -> float:
    """Return what a trial reported last of a metric, also where its last result has none; NaN: it never did."""
    value = flattened(trial.last_result or {}).get(metric, trial.metric_analysis.get(metric, {}).get("last"))
    return float(value) if isinstance(value, int | float) else math.nan
