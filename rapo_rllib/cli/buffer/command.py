"""``rllib buffer``: search, count, export and delete a buffer. The longer commands have files of their own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rapo_rllib.cli.buffer import build, importing, stats  # noqa: F401  (they add their commands)
from rapo_rllib.cli.buffer.options import (
    DEFAULT_COLLECTION,
    DEFAULT_URI,
    Collection,
    DbName,
    StoredEmbedder,
    Uri,
    buffer_app,
    opened,
    opened_as_stored,
)

if TYPE_CHECKING:
    from rapo_rllib.types import HistoryQuery, RetrievedTrace


@buffer_app.command("search")
def search(
    text: Annotated[str, typer.Argument(help="A question; with --question: the steps so far.", show_default=False)],
    question: Annotated[str | None, typer.Option(help="The question, if TEXT is the history.")] = None,
    history: Annotated[str | None, typer.Option(help="The steps so far, if TEXT is the question.")] = None,
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    top_k: Annotated[int, typer.Option(min=1, max=1000, help="How many step traces.")] = 3,
    source: Annotated[list[str] | None, typer.Option(help="Only those of this agent; may be repeated.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only those with this reward or more.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a step trace.")] = False,
    embedder: StoredEmbedder = None,
    db_name: DbName = "",
) -> None:
    """Show the step traces whose keys are nearest to a question, or to the history of one."""
    from rapo_rllib.settings import TraceFilter

    chosen = TraceFilter(sources=tuple(source) if source else None, min_reward=min_reward)
    where: dict[str, Any] = {"uri": uri, "collection": collection, "db_name": db_name}
    with opened_as_stored(embedder, filter=chosen, **where) as buffer:
        (hits,) = buffer.retrieve([_query(text, question, history)], top_k)
        for number, hit in enumerate(hits, start=1):
            typer.echo(json.dumps(_record(hit), ensure_ascii=False) if as_json else _shown(number, hit))
        if not hits:
            typer.echo("Nothing was found.", err=True)


@buffer_app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="Where to: .jsonl or .jsonl.gz.", show_default=False)],
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    overwrite: Annotated[bool, typer.Option("--replace", help="Write over an existing file.")] = False,
    db_name: DbName = "",
) -> None:
    """Write every step trace, with all that is known of it, to FILE; `import` makes the same buffer of it."""
    from rapo_rllib.cli.build_display import counted

    with opened(uri=uri, collection=collection, db_name=db_name) as buffer:
        from rapo_rllib.buffer.exporting import export_traces

        with counted("step traces") as tell:
            count = export_traces(buffer, file, overwrite, tell)
        typer.echo(f"{file} holds the {count:,} step traces of {buffer.uri} ({collection}).")


@buffer_app.command("drop")
def drop(
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    db_name: DbName = "",
) -> None:
    """Delete a buffer: its step traces, and what is noted about them."""
    with opened(uri=uri, collection=collection, db_name=db_name) as buffer:
        if buffer.note("embedder") is None:  # what stays until everything else is gone
            if buffer.exists():
                raise ValueError(f"collection {collection!r} at {buffer.uri} is no Step-Trace Buffer; nothing was deleted")
            raise ValueError(f"there is no collection {collection!r} at {buffer.uri}; correct --uri or --collection")
        typer.echo(f"{buffer.uri} ({collection}): {buffer.count():,} step traces and their notes will be deleted.")
        if not yes:
            typer.confirm("Delete them?", abort=True)
        buffer.drop()
        typer.echo("Deleted.")


def _query(text: str, question: str | None, history: str | None) -> HistoryQuery:
    from rapo_rllib.types import HistoryQuery

    if question is not None and history is not None:
        raise ValueError("--question and --history: TEXT is one of both; give only the other")
    return HistoryQuery(text, history or "") if question is None else HistoryQuery(question, text)


def _record(hit: RetrievedTrace) -> dict[str, object]:
    return {"similarity": round(hit.similarity, 4), **asdict(hit.trace)}


def _shown(number: int, hit: RetrievedTrace) -> str:
    trace = hit.trace
    about = f"step {trace.step_index} by {trace.source or 'unknown'}, reward {trace.reward:g}"
    return f"[{number}] {hit.similarity:.4f}  {about}\n{trace.question}\n---\n{trace.text.strip()}\n"
