"""``rllib buffer stats``: what a buffer holds, as tables or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rapo_rllib.cli.buffer.options import (
    DEFAULT_COLLECTION,
    DEFAULT_URI,
    Collection,
    DbName,
    StoredEmbedder,
    Uri,
    buffer_app,
    opened_as_stored,
    opened_to_read,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rapo_rllib.buffer.statistics import BufferStats


@buffer_app.command("stats")
def stats(
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    questions: Annotated[list[Path] | None, typer.Option(help="Training questions, for the coverage; .jsonl[.gz], ….")] = None,
    near: Annotated[float, typer.Option(min=0.0, max=1.0, help="Cosine from which on two keys are near-duplicates.")] = 0.98,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    embedder: StoredEmbedder = None,
    db_name: DbName = "",
) -> None:
    """Describe a buffer: sources, lengths, rewards, near-duplicates, coverage."""
    opening = opened_as_stored if questions else opened_to_read  # questions are embedded
    with opening(embedder, uri=uri, collection=collection, db_name=db_name) as buffer:
        from rapo_rllib.buffer.statistics import statistics
        from rapo_rllib.cli.buffer.question_files import question_texts
        from rapo_rllib.cli.build_display import counted

        texts = [text for path in questions or [] for text in question_texts(path, "--questions")]
        with counted("rows", quiet=as_json) as tell:
            found = statistics(buffer, texts, near, tell)
        if as_json:
            typer.echo(json.dumps(asdict(found), ensure_ascii=False))
        else:
            _print(found)


def _print(found: BufferStats) -> None:
    from rich.console import Console

    console = Console()
    for part in (_overview(found), _sources(found), _spreads(found)):
        console.print(part)


def _overview(found: BufferStats) -> RenderableType:
    """The single numbers, each with its name."""
    from rich.table import Table

    share = found.near_duplicates / max(found.near_sample, 1)
    compared = "every key" if found.near_sample == found.traces else f"a sample of {found.near_sample:,} keys"
    rows = [
        ("step traces", f"{found.traces:,}"),
        ("trajectories", f"{found.trajectories:,}"),
        ("different questions", f"{found.questions:,}"),
        ("steps per trajectory", _lengths(found.steps_per_trajectory)),
        ("near-duplicate keys", f"{share:.1%} (cosine of {found.near_threshold:g} or more to another; {compared})"),
        ("embedder", str(found.facts.get("name", "unknown"))),
    ]
    if found.asked:
        known = f"{found.covered:,} of {found.asked:,} ({found.covered / found.asked:.1%})"
        rows.insert(4, ("training questions with a trace", known))
    table = Table(title=found.where, show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _lengths(lengths: dict[int, int]) -> str:
    total = max(sum(lengths.values()), 1)
    return f"{sum(n * count for n, count in lengths.items()) / total:.1f} on average, {max(lengths, default=0)} at most"


def _spreads(found: BufferStats) -> RenderableType:
    """The distributions that are there, each with its name."""
    from rich.table import Table

    named = {
        "text, characters": found.text_length,
        "history, characters": found.history_length,
        "reward": found.reward,
        "cosine to the nearest other key": found.near_similarity,
        "cosine of a training question to the nearest key": found.asked_similarity,
    }
    parts = [(name, spread) for name, spread in named.items() if spread is not None]
    table = Table("", "mean", *parts[0][1].quantiles)
    for name, spread in parts:
        table.add_row(name, f"{spread.mean:.4g}", *(f"{value:.4g}" for value in spread.quantiles.values()))
    return table


def _sources(found: BufferStats) -> RenderableType:
    from rich.table import Table

    table = Table("source", "step traces", "share", "mean reward")
    for name, count in found.by_source.items():
        reward = found.mean_reward_by_source[name]
        table.add_row(name or "(none)", f"{count:,}", f"{count / found.traces:.1%}", f"{reward:.3g}")
    return table
