"""``rllib buffer import``: files of traces into a buffer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rapo_rllib.cli.buffer.options import (
    DEFAULT_COLLECTION,
    DEFAULT_URI,
    Collection,
    DbName,
    Uri,
    buffer_app,
    opened_as_stored,
)

if TYPE_CHECKING:
    from rapo_rllib.buffer.importing import ImportReport


@buffer_app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Traces: .jsonl or .jsonl.gz.", show_default=False)],
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    embedder: Annotated[
        str | None,
        typer.Option(help="sentence-transformers folder, id, or all-minilm-l6-v2 (which a new buffer gets by default)."),
    ] = None,
    pooling: Annotated[str | None, typer.Option(help="mean or last_token (default: the buffer's, else mean).")] = None,
    key_recipe: Annotated[
        str | None,
        typer.Option(help="What is embedded: goal_and_recent or last_characters (default: the same)."),
    ] = None,
    key_history_tokens: Annotated[int | None, typer.Option(help="So many tokens of the steps' end alone are a key.")] = None,
    format: Annotated[str, typer.Option(help="auto, traces, released, chat, traces-steps or transcripts.")] = "auto",
    source: Annotated[str | None, typer.Option(help="Name of the agent, in place of the files'.")] = None,
    max_traces: Annotated[int | None, typer.Option(min=1, help="The first so many step traces.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only traces with this reward or more (default: above 0).")] = None,
    evaluation: Annotated[list[Path] | None, typer.Option(help="Questions that must not get in; .jsonl[.gz], ….")] = None,
    db_name: DbName = "",
) -> None:
    """Embed the traces of FILES and store them. Run it again to go on after an interruption, or to add more."""
    where: dict[str, Any] = {"uri": uri, "collection": collection, "db_name": db_name}
    with opened_as_stored(embedder, pooling, key_recipe, key_history_tokens, **where) as buffer:
        from rapo_rllib.buffer.importing import ImportPlan, import_traces, survey
        from rapo_rllib.cli.buffer.question_files import evaluation_guard
        from rapo_rllib.cli.build_display import resumable

        guard = evaluation_guard(evaluation)
        plan = ImportPlan(tuple(files), format, source, max_traces, min_reward, guard)
        report = survey(plan)
        with resumable("step traces") as display:
            written = import_traces(buffer, plan, report, display)
        _show(report)
        done = f"{written.added:,} were added" + (f", {written.updated:,} were updated" if written.updated else "")
        typer.echo(f"{buffer.uri} ({collection}) holds {buffer.count():,} step traces; {done}.")


def _show(report: ImportReport) -> None:
    for name, count in report.given.items():
        typer.echo(f"source {name!r}: {count:,} step traces")
    for reason, count in report.dropped.items():
        typer.echo(f"left out: {count:,} ({reason})")
