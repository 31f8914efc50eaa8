"""The end of a run: ``summary.json`` in every trial's folder, the closing table and hint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from rapo_rllib.cli.train.comparison import comparison
from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.monitoring.warning_rules import ALARMS
from rapo_rllib.monitoring.warnings import WarningWatch

SUMMARY_KEYS = (
    "accuracy_before",
    "accuracy_after",
    "accuracy_best",
    "evaluated_questions",
    "seconds",
    "tokens_per_s",
    "retrievals",
)


def summary_of(result: Mapping[str, Any], checkpoint: str | None, watch: WarningWatch) -> dict[str, Any] | None:
    """The content of ``summary.json``, null where there is no number; None for algorithms that report no accuracy."""
    found = result.get("rapo")
    if not found:
        return None
    numbers = {key: _number(found.get(key)) for key in SUMMARY_KEYS}
    held = {warning.name for warning in watch.holding}
    warnings = [{**warning.as_dict(), "holds": warning.name in held} for warning in watch.begun]
    return {**numbers, "checkpoint": checkpoint, "warnings": warnings}


def _number(value: Any) -> int | float | None:
    """A plain number, which JSON can hold."""
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and not isinstance(value, float) else number


def close_run(
    file: Path,
    trained: Sequence[tuple[ExperimentSpec, list[Any]]],
    watches: Mapping[str, WarningWatch],
    *,
    interrupted: bool,
) -> None:
    """Write the summaries, compare the trials, and say what can be done next with the checkpoints.

    Args:
        file: that describes the experiments.
        trained: every experiment with its trials, which have ended.
        watches: of the warnings of each trial, by its id.
        interrupted: whether Ctrl-C ended them.
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
    checkpoints = [checkpoint for checkpoint in map(best_checkpoint, trials) if checkpoint]
    if not checkpoints:
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
    """Find the metric that an experiment names, and max or min: its scheduler's, else that of its checkpoints."""
    if metric := spec.scheduler.get("metric"):
        return metric, spec.scheduler.get("mode", "max")
    kept = spec.checkpoint_config
    return kept.get("checkpoint_score_attribute"), kept.get("checkpoint_score_order", "max")


def _say_end(trials: list[Any], watches: Mapping[str, WarningWatch]) -> None:
    """Say that the training finished, unless trials failed or an alarm holds: then say that."""
    failed = sum(trial.status == "ERROR" for trial in trials)
    if failed:
        typer.secho(
            f"\n{failed} of {len(trials)} trials failed." if failed < len(trials) else "\nYour training failed.", fg="red"
        )
    alarms = [(trial, warning) for trial in trials for warning in watches[trial.trial_id].holding if warning.name in ALARMS]
    if not alarms and not failed:
        typer.echo("\nYour training finished.")
    if not alarms:
        return
    typer.secho("\nYour training ended with less than it had learned before:", fg="red")
    for trial, warning in alarms:
        typer.secho(f"  {trial}: {warning}", fg="red")


def best_checkpoint(trial: Any) -> str | None:
    """Path of the best checkpoint by ``checkpoint_score_attribute``; without one, of the latest."""
    manager = trial.run_metadata.checkpoint_manager
    scored = manager.checkpoint_config.checkpoint_score_attribute is not None
    result = manager.best_checkpoint_result if scored else manager.latest_checkpoint_result
    return str(result.checkpoint.path) if result else None


def _summarize(trial: Any, watch: WarningWatch) -> None:
    summary = summary_of(trial.last_result or {}, best_checkpoint(trial), watch)
    if summary is None:
        return
    file = Path(trial.path) / "summary.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    typer.echo(f"\n{trial}  ({file})")
    for key, value in summary.items():
        if key == "warnings":
            continue
        shown = f"{value:.3f}" if isinstance(value, float) else "-" if value is None else value
        typer.echo(f"  {key:<20} {shown}")
    for warning in watch.begun:
        typer.secho(f"  Warning, from iteration {warning.iteration} on: {warning}", fg="yellow")
