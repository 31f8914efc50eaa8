"""Write results of ``rllib evaluate`` as JSON, and show them as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from rapo_rllib.settings import ProtocolSettings

if TYPE_CHECKING:
    from rapo_rllib.evaluation.models import ModelRun
    from rapo_rllib.evaluation.plan import EvaluationPlan


def results(runs: Sequence[ModelRun], plan: EvaluationPlan) -> dict[str, Any]:
    """Settings by model, numbers by benchmark and model; those after the first also with their paired difference to it."""
    from rapo_rllib.evaluation.metrics import accuracies, paired_difference, summary

    found: dict[str, Any] = {"scorer": plan.scorer, "retrieval_prob": plan.retrieval_prob}
    found |= {"settings": {run.label: run.settings for run in runs}, "benchmarks": {}}
    for asked in plan.asked:
        benchmark, models = asked.benchmark, {}
        outcomes = [run.outcomes(asked) for run in runs]
        for index, (run, measured) in enumerate(zip(runs, outcomes, strict=True)):
            sampling = {name: run.settings[name] for name in ("temperature", "seed")}
            numbers = {"model": run.choice.name, **sampling, **summary(measured)}
            models[run.label] = numbers
            if index:
                numbers["to_first"] = paired_difference(accuracies(outcomes[0]), accuracies(measured))
        found["benchmarks"][benchmark.name] = {"caution": benchmark.caution, "models": models}
    return found


def show(found: Mapping[str, Any]) -> None:
    """Print a table, and what its numbers must not be taken for."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("benchmark", "model", "questions", "accuracy", "95 %", "pass@k", "F1", "format", "calls", "tokens", "s"):
        table.add_column(column, no_wrap=column != "model")
    rows = [(name, model, row) for name, one in found["benchmarks"].items() for model, row in one["models"].items()]
    for name, model, row in rows:
        table.add_row(name, model, *_cells(row))
    Console(width=None if Console().is_terminal else 160).print(table)
    if found["retrieval_prob"]:
        typer.echo(f"With retrieval: after a completed step with probability {found['retrieval_prob']:g}.")
    for name, model, row in rows:
        for lost in _lost(row, _where_read(found["settings"][model])):
            typer.secho(f"{name}, {model}: {lost}", fg="yellow")
        if "to_first" in row:
            low, high = row["to_first"]["difference_ci"]
            typer.echo(f"{name}: {model} to the first: {row['to_first']['difference']:+.3f} [{low:+.3f}, {high:+.3f}]")
    for name, one in found["benchmarks"].items():
        if one["caution"] and found["scorer"] == "auto":
            typer.secho(f"{name}: {one['caution']}", fg="yellow")


def _where_read(settings: Mapping[str, Any]) -> str:
    """Where the answers of a model had to stand; empty: anywhere."""
    protocol, answers = settings["protocol"], settings["env_config"].get("read_answer", "tagged")
    if answers == "tagged" and protocol["format"] == "tags":
        return f" in <{ProtocolSettings.answer_tag}>"
    return " in a box" if answers == "boxed" else ""


def _lost(row: Mapping[str, Any], where: str) -> Iterator[str]:
    """Tell what the numbers leave out, and why nothing is right."""
    attempts = row["questions"] * row["samples"]
    none_right = f"0 of {attempts} right" if row["accuracy"] == 0 else ""
    if unanswered := sum(row["unanswered"].values()):
        ends = ", ".join(f"{end} {count}" for end, count in sorted(row["unanswered"].items()))
        fix = "; --answers any reads it as the model gives it" if "eos" in row["unanswered"] and where else ""
        told = f"{unanswered} of {attempts} attempts have no answer{where} (ended by {ends}){fix}"
        yield f"{none_right}: {told}" if none_right else told
    elif none_right and not row["failed"]:
        yield f"{none_right}, and all have an answer: compare `predicted` with `gold` in transcripts.jsonl"
    if row["failed"]:
        yield f"{row['failed']} of {attempts} attempts failed and count as wrong"
    for why, count in row["score_failures"].items():
        yield f"{count} of {attempts} attempts were not judged by the scorer asked for ({why}), but as its on_failure says"
    if row["failed_retrievals"]:
        yield f"{row['failed_retrievals']} retrievals failed; those attempts went on without"


def _cells(row: Mapping[str, Any]) -> list[str]:
    low, high = row["accuracy_ci"]
    best = max(row["pass_at_k"], key=int)
    return [
        str(row["questions"]),
        f"{row['accuracy']:.3f}",
        f"{low:.3f}-{high:.3f}",
        f"{row['pass_at_k'][best]:.3f} @{best}",
        f"{row['f1']:.3f}" if "f1" in row else "",
        f"{row['format_rate']:.3f}",
        f"{row['tool_calls']:.2f}",
        f"{row['tokens']:.0f}",
        f"{row['seconds']:.1f}",
    ]
