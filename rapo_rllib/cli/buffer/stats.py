"""``rllib buffer stats``: what a buffer holds, as lines or JSON, and what it should not hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rapo_rllib.cli.buffer.options import DEFAULT_COLLECTION, DEFAULT_URI, Collection, DbName, Uri, buffer_app, opened

if TYPE_CHECKING:
    from rapo_rllib.buffer.statistics import BufferStats


@buffer_app.command("stats")
def stats(
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    questions: Annotated[list[Path] | None, typer.Option(help="Training questions, for the coverage; .jsonl[.gz], ….")] = None,
    evaluation: Annotated[list[Path] | None, typer.Option(help="Questions that must not be in it; .jsonl[.gz], ….")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    db_name: DbName = "",
) -> None:
    """Describe a buffer: sources, lengths, rewards, coverage; exit status 1 if evaluation questions are in it."""
    with opened(uri=uri, collection=collection, db_name=db_name) as buffer:
        from rapo_rllib.buffer.statistics import statistics
        from rapo_rllib.cli.buffer.question_files import evaluation_guard, question_texts
        from rapo_rllib.cli.build_display import counted

        texts = [text for path in questions or [] for text in question_texts(path, "--questions")]
        guard = evaluation_guard(evaluation)
        with counted("step traces", quiet=as_json) as tell:
            found = statistics(buffer, texts, guard, tell)
        typer.echo(json.dumps(asdict(found), ensure_ascii=False) if as_json else "\n".join(_lines(found)))
    if found.leaks:
        raise typer.Exit(1)


def _lines(found: BufferStats) -> Iterator[str]:
    yield f"{found.where}, embedded by {found.embedder}"
    yield f"{found.traces:,} step traces of {found.trajectories:,} trajectories; {found.questions:,} different questions"
    for files in found.unfinished:
        yield f"WRONG: the import of {files} was not finished; run it again"
    for question, count in found.leaks.items():
        yield f"WRONG: {count:,} step traces of a question of the evaluation: {question[:120]}"
    if found.asked:
        known = f"{found.covered:,} of {found.asked:,} ({found.covered / found.asked:.1%})"
        yield f"training questions with a trace: {known}"
    for name, count in sorted(found.by_source.items(), key=lambda each: -each[1]):
        yield f"source {name!r}: {count:,} step traces, mean reward {found.mean_reward_by_source[name]:.3g}"
    for name, numbers in found.spreads.items():
        yield f"{name}: " + ", ".join(f"{which} {value:.4g}" for which, value in numbers.items())
