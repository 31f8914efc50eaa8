"""Table of the numbers of an evaluation or a build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from rapo_rllib.settings import ProtocolSettings

COLUMNS = ("benchmark", "model", "questions", "accuracy", "95 %", "pass@k", "F1", "format", "reward", "calls", "tokens", "s")


def show(benchmarks: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a table of the numbers, below it what they leave out, and the differences to the first model.

    Args:
        benchmarks: by name, a mapping whose ``models`` are numbers by model (``evaluation.metrics.summary``).
        settings: by model.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in COLUMNS:
        table.add_column(column, no_wrap=column != "model")
    rows = [(name, model, row) for name, one in benchmarks.items() for model, row in one["models"].items()]
    for name, model, row in rows:
        table.add_row(name, model, *_cells(row))
    Console(width=None if Console().is_terminal else 160).print(table)
    for name, model, row in rows:
        for lost in _lost(row, _where_read(settings[model])):
            typer.secho(f"{f'{name}, ' if name else ''}{model}: {lost}", fg="yellow")
        if "to_first" in row:
            low, high = row["to_first"]["difference_ci"]
            typer.echo(f"{name}: {model} to the first: {row['to_first']['difference']:+.3f} [{low:+.3f}, {high:+.3f}]")


def _where_read(settings: Mapping[str, Any]) -> str:
    """Name the place where the answers of a model had to stand; empty: anywhere."""
    protocol, answers = settings["protocol"], settings["env_config"].get("read_answer", "tagged")
    if answers == "tagged" and protocol["format"] == "tags":
        return f" in <{ProtocolSettings.answer_tag}>"
    return " in a box" if answers == "boxed" else ""


def _lost(row: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield messages on missing answers, failures, and a model that has no answer right."""
    attempts = row["questions"] * row["samples"]
    none_right = f"0 of {attempts} right" if row["accuracy"] == 0 else ""
    if unanswered := sum(row["unanswered"].values()):
        fix = "; --answers any reads it as the model gives it" if "eos" in row["unanswered"] and where else ""
        told = f"{unanswered} of {attempts} attempts have no answer{where} (ended by {by_name(row['unanswered'])}){fix}"
        yield f"{none_right}: {told}" if none_right else told
    elif none_right and not row["failed"]:
        yield f"{none_right}, and all have an answer: compare `predicted` with `gold` in transcripts.jsonl"
    for error, count in row["errors"].items():
        yield f"{count} of {attempts} attempts failed and count as wrong: {error}"
    for why, count in row["score_failures"].items():
        yield f"{count} of {attempts} attempts were not judged by the scorer asked for ({why}), but as its on_failure says"
    if row["failed_retrievals"]:
        yield f"{row['failed_retrievals']} retrievals failed; those attempts went on without"


def by_name(counts: Mapping[str, int]) -> str:
    """Join names and counts in one line, sorted by name."""
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _cells(row: Mapping[str, Any]) -> list[str]:
    low, high = row["accuracy_ci"]
    best = max(row["pass_at_k"], key=int)
    return [
        f"{row['questions']:,}",
        f"{row['accuracy']:.3f}",
        f"{low:.3f}-{high:.3f}",
        f"{row['pass_at_k'][best]:.3f} @{best}",
        f"{row['f1']:.3f}" if "f1" in row else "",
        f"{row['format_rate']:.3f}",
        f"{row['reward']:.3f}",
        f"{row['tool_calls']:.2f}",
        f"{row['tokens']:.0f}",
        f"{row['seconds']:.1f}",
    ]
