"""The end of a run: ``summary.json`` in every trial's folder, a table of a sweep's trials, and a hint on checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.monitoring.warning_rules import ALARMS
from rapo_rllib.monitoring.warnings import WarningWatch

SUMMARY_KEYS = (
    *("accuracy_before", "accuracy_after", "accuracy_best", "evaluated_questions"),
    *("seconds", "tokens_per_s", "retrievals"),
)
METRICS = (  # trials are compared by the first of these that all report, failed trials aside
    "evaluation/env_runners/accuracy",
    "evaluation/env_runners/episode_return_mean",
    "env_runners/episode_return_mean",
)


def close_run(
    file: Path,
    trained: Sequence[tuple[ExperimentSpec, list[Any]]],
    watches: Mapping[str, WarningWatch],
    *,
    interrupted: bool,
) -> None:
    """Write the summaries, compare the trials, and say what can be done next with the checkpoints.

    Args:
        file: the job, which describes the experiments.
        trained: every experiment with its trials, which have ended.
        watches: the warnings of each trial, by its id.
        interrupted: whether Ctrl-C ended the trials.
    """
    trials = [trial for _, of_one in trained for trial in of_one]
    for trial in trials:
        _summarize(trial, watches[trial.trial_id])
    for spec, of_one in trained:
        if lines := comparison(of_one, *_goal(spec)):
            typer.echo("\n".join(["", *lines]))
    if interrupted:
        typer.echo("\nYour training was interrupted. The same command with --resume continues it.")
    else:
        _say_end(trials, watches)
    if not (checkpoints := [checkpoint for checkpoint in map(best_checkpoint, trials) if checkpoint]):
        typer.echo("No trial has written a checkpoint.")
        return
    typer.echo("Best available checkpoint for each trial:")
    for checkpoint in checkpoints:
        typer.echo(f"  {checkpoint}")
    typer.echo("\nYou can now train on from any checkpoint (with a higher stop criterion), or load it, e.g.:")
    typer.echo(f"  rllib train file {file} --restore {checkpoints[0]}")
    typer.echo("  from ray.rllib.algorithms.algorithm import Algorithm")
    typer.echo(f"  algo = Algorithm.from_checkpoint({checkpoints[0]!r})")


def _goal(spec: ExperimentSpec) -> tuple[str | None, str]:
    """Find the metric that an experiment names, and its mode, max or min: the scheduler's, else that of the checkpoints."""
    if metric := spec.scheduler.get("metric"):
        return metric, spec.scheduler.get("mode", "max")
    kept = spec.checkpoint_config
    return kept.get("checkpoint_score_attribute"), kept.get("checkpoint_score_order", "max")


def _say_end(trials: list[Any], watches: Mapping[str, WarningWatch]) -> None:
    """Say which trials failed and which alarms hold; if there are none, say that the training finished."""
    failed = [trial for trial in trials if trial.status == "ERROR"]
    alarms = [(trial, warning) for trial in trials for warning in watches[trial.trial_id].holding if warning.name in ALARMS]
    if failed:
        some = f"{len(failed)} of {len(trials)} trials failed." if len(failed) < len(trials) else "Your training failed."
        hint = " The same command with --resume goes on from the last checkpoint." if any(map(best_checkpoint, failed)) else ""
        typer.secho(f"\n{some}{hint}", fg="red")
    if alarms:
        typer.secho("\nYour training ended, but not as it was meant:", fg="red")
    for trial, warning in alarms:
        typer.secho(f"  {trial}: {warning}", fg="red")
    if not alarms and not failed:
        typer.echo("\nYour training finished.")


def best_checkpoint(trial: Any) -> str | None:
    """Find the best checkpoint by ``checkpoint_score_attribute``; if the job sets none, the latest. None: there is none."""
    manager = trial.run_metadata.checkpoint_manager
    scored = manager.checkpoint_config.checkpoint_score_attribute is not None
    result = manager.best_checkpoint_result if scored else manager.latest_checkpoint_result
    return str(result.checkpoint.path) if result else None


def _summarize(trial: Any, watch: WarningWatch) -> None:
    if (summary := summary_of(trial.last_result or {}, best_checkpoint(trial), watch)) is None:
        return
    file = Path(trial.path) / "summary.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    except OSError as error:  # e.g. a full disk, which may have ended the trial: go on to print why
        typer.secho(f"{file} could not be written: {error}", err=True, fg="red")
    typer.echo(f"\n{trial}  ({file})")
    for key in (*SUMMARY_KEYS, "checkpoint"):
        value = summary[key]
        shown = f"{value:.3f}" if isinstance(value, float) else "-" if value is None else value
        typer.echo(f"  {key:<20} {shown}")
    for warning in watch.begun:
        typer.secho(f"  Warning, from iteration {warning.iteration} on: {warning}", fg="yellow")


def summary_of(result: Mapping[str, Any], checkpoint: str | None, watch: WarningWatch) -> dict[str, Any] | None:
    """Build the content of ``summary.json``, with None for missing numbers; None as a whole if no ``rapo`` was reported."""
    found = result.get("rapo")
    if not found:
        return None
    numbers = {key: _number(found.get(key)) for key in SUMMARY_KEYS}
    held = {warning.name for warning in watch.holding}
    warnings = [{**asdict(warning), "holds": warning.name in held} for warning in watch.begun]
    return {**numbers, "checkpoint": checkpoint, "warnings": warnings}


def _number(value: Any) -> int | float | None:
    """Convert to a plain number, which JSON can hold; None if it is missing or not finite."""
    number = math.nan if value is None else float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and not isinstance(value, float) else number


def written(settings: Mapping[str, Any]) -> str:
    """Render the settings in which a trial differs from others; Tune's own tag would show a rate of 1e-6 as ``lr=0.0000``.

    >>> written({"lr": 1e-6, "model/lora/rank": 8})
    'lr=1e-06,rank=8'
    >>> written({"a/rank": 4, "b/rank": 8})
    'a/rank=4,b/rank=8'
    """
    last = {key: key.rpartition("/")[2] for key in settings}
    names = {key: name if list(last.values()).count(name) == 1 else key for key, name in last.items()}
    return ",".join(f"{names[key]}={f'{value:g}' if isinstance(value, float) else value}" for key, value in settings.items())


def comparison(trials: Sequence[Any], metric: str | None = None, mode: str = "max") -> list[str]:
    """Render the lines of a table of trials, the last one naming the best trial; none for a single trial, or if all failed.

    Args:
        trials: of one experiment; those that failed or reported nothing come last.
        metric: the one that the experiment names; None: the first of ``METRICS`` that all report, failed trials aside.
        mode: max or min.
    """
    ended = [trial for trial in trials if trial.status != "ERROR"]
    if len(trials) < 2 or not ended:
        return []
    missing = {name: [math.isnan(last_value(trial, name)) for trial in ended] for name in ((metric,) if metric else METRICS)}
    comparable = [name for name, gaps in missing.items() if not (all(gaps) if metric else any(gaps))]
    if not comparable:
        reported = f"{metric} was reported by none" if metric else "no reward or accuracy was reported by all"
        return [
            f"The trials cannot be compared: {reported} of those that did not fail. "
            "checkpoint_config.checkpoint_score_attribute, or a scheduler's metric, names what to compare; a trial's "
            "result.json has what was reported."
        ]
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
    """Find the last value that a trial reported of a metric, in its last result or an earlier one; NaN: it never did."""
    value = flattened(trial.last_result or {}).get(metric, trial.metric_analysis.get(metric, {}).get("last"))
    return float(value) if isinstance(value, int | float) else math.nan
