"""``rllib buffer stats``: what a buffer holds, as lines or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
        typer.echo(json.dumps(asdict(found), ensure_ascii=False) if as_json else "\n".join(_lines(found)))


def _lines(found: BufferStats) -> Iterator[str]:
    near = f"{found.near_duplicates / found.near_sample:.1%} of {found.near_sample:,} keys"
    yield f"{found.where}, embedded by {found.embedder}"
    yield f"{found.traces:,} step traces of {found.trajectories:,} trajectories; {found.questions:,} different questions"
    if found.asked:
        known = f"{found.covered:,} of {found.asked:,} ({found.covered / found.asked:.1%})"
        yield f"training questions with a trace: {known}"
    yield f"near-duplicates: {near} have another at a cosine of {found.near_threshold:g} or more"
    for name, count in sorted(found.by_source.items(), key=lambda each: -each[1]):
        yield f"source {name!r}: {count:,} step traces, mean reward {found.mean_reward_by_source[name]:.3g}"
    for name, numbers in found.spreads.items():
        yield f"{name}: " + ", ".join(f"{which} {value:.4g}" for which, value in numbers.items())
