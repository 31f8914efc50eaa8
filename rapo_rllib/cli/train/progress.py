"""One line per event of a training, for people and for logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import typer
from ray.tune import Callback

from rapo_rllib.cli.terminal import duration
from rapo_rllib.cli.train.ending import written
from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.monitoring.warnings import WarningWatch


class TrainingReporter(Callback):
    """Tune callback that prints the events of trials, and the warnings about their results.

    Args:
        stop: stop criteria; the number of iterations is used to tell the time that is left.
        watches: a watch for each trial, by its id, which takes the trial's results and warns.
    """

    def __init__(self, stop: Mapping[str, float], watches: defaultdict[str, WarningWatch]) -> None:
        self._stop, self._watches = stop, watches
        self._configs: dict[str, dict[str, Any]] = {}  # by trial; Population Based Training changes them in an exploit

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Report that a trial started, resumed, or was replaced by a clone."""
        config = {key: value for key, value in flattened(trial.config).items() if isinstance(value, int | float | str | list)}
        before = self._configs.get(trial.trial_id)
        self._configs[trial.trial_id] = config
        if before is None:
            typer.echo(f"[{trial}] started; results go to {trial.path}")
        elif changed := {key: value for key, value in config.items() if before.get(key) != value}:
            typer.echo(f"[{trial}] continues from a better trial's checkpoint with {written(changed)}")
        else:
            typer.echo(f"[{trial}] continues")

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        """Print the line of an iteration, and warnings that are new."""
        typer.echo(f"[{trial}] {result_line(result, self._stop.get('training_iteration'))}")
        for warning in self._watches[trial.trial_id].take(result, result.get("config") or trial.config):
            typer.secho(f"[{trial}] Warning: {warning}", err=True, fg="yellow")

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """Print where a checkpoint was written."""
        typer.echo(f"[{trial}] checkpoint {checkpoint.path}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Print why a trial failed."""
        last = f"its last checkpoint is {trial.checkpoint.path}" if trial.checkpoint else "it has written no checkpoint"
        typer.secho(f"[{trial}] failed; the whole error is in {trial.path}/error.txt, {last}", err=True, fg="red")

    on_trial_recover = on_trial_error  # Tune starts it again from there, as often as max_failures says


def result_line(result: dict[str, Any], iterations: float | None = None) -> str:
    """Render iteration, time, reward; for language models also accuracy, tokens/s, and the seconds of each part.

    Args:
        result: of an iteration.
        iterations: their number after which the trial ends, to tell the time that is left at the pace so far; None: not told.
    """
    parts = [f"iteration {result['training_iteration']}", f"{result['time_total_s']:.1f} s"]
    sampled = result.get("env_runners", {})
    if (reward := sampled.get("episode_return_mean")) is not None:
        parts.append(f"reward {float(reward):.3f}")
    if "tokens_per_s" in sampled:
        parts.append(f"{float(sampled['tokens_per_s']):.0f} tokens/s")
        parts.append(f"{float(sampled['retrieval']['count']):.0f} retrievals")
        timers = result.get("timers", {})
        parts += [f"{name} {float(timers[name]):.1f} s" for name in ("rollout", "update", "sync") if name in timers]
    evaluated = result.get("evaluation", {}).get("env_runners", {})
    if "accuracy" in evaluated:
        parts.append(f"held-out accuracy {float(evaluated['accuracy']):.3f}")
    elif (evaluated_reward := evaluated.get("episode_return_mean")) is not None:
        parts.append(f"evaluation reward {float(evaluated_reward):.3f}")
    if iterations is not None and (left := iterations / result["training_iteration"] - 1) > 0:
        parts.append(f"about {duration(left * result['time_total_s'])} left")
    return " · ".join(parts)
