"""The end of a run: ``summary.json`` in every trial's folder, the closing table and hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

SUMMARY_KEYS = ("accuracy_before", "accuracy_after", "evaluated_questions", "seconds", "tokens_per_s", "retrievals")


def summary_of(result: dict[str, Any], checkpoint: str | None) -> dict[str, Any] | None:
    """The numbers of ``summary.json``; None for algorithms that have none."""
    found = result.get("rapo")
    if found is None:
        return None
    return {**{key: found.get(key) for key in SUMMARY_KEYS}, "checkpoint": checkpoint}


def close_run(path: Path, trials: list[Any]) -> None:
    """Write the summaries and say what can be done next."""
    for trial in trials:
        checkpoint = trial.checkpoint.path if trial.checkpoint else None
        summary = summary_of(trial.last_result or {}, checkpoint)
        if summary is not None:
            file = Path(trial.path) / "summary.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
            _print_summary(str(trial), summary, file)
    typer.echo("\nYour training finished.")
    checkpoints = [(trial, trial.checkpoint.path) for trial in trials if trial.checkpoint]
    if not checkpoints:
        typer.echo("No trial has written a checkpoint.")
        return
    typer.echo("Best available checkpoint for each trial:")
    for _, checkpoint in checkpoints:
        typer.echo(f"  {checkpoint}")
    first = checkpoints[0][1]
    typer.echo("\nYou can now go on training from any checkpoint, or load it, e.g.:")
    typer.echo(f"  rllib train file {path} --restore {first}")
    typer.echo("  from ray.rllib.algorithms.algorithm import Algorithm")
    typer.echo(f"  algo = Algorithm.from_checkpoint({first!r})")


def _print_summary(name: str, summary: dict[str, Any], file: Path) -> None:
    typer.echo(f"\n{name}  ({file})")
    for key, value in summary.items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        typer.echo(f"  {key:<20} {shown}")
