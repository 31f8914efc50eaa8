"""``rllib buffer``: fill a buffer from files, search, describe, export or delete it. ``build.py`` fills one by an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rapo_rllib.cli.options import Collection, NewEmbedder, Uri
from rapo_rllib.cli.terminal import one_line_errors, resumable

if TYPE_CHECKING:
    from rapo_rllib.buffer.leak_guard import LeakGuard
    from rapo_rllib.buffer.statistics import BufferStats
    from rapo_rllib.buffer.store import StepTraceBuffer
    from rapo_rllib.types import RetrievedTrace

buffer_app = typer.Typer(no_args_is_help=True, help="The Step-Trace Buffer: steps of off-policy agents, in Milvus.")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object; of a search one for each step trace.")]
Evaluation = Annotated[list[Path] | None, typer.Option(help="Questions that must not be in it; .jsonl[.gz], ….")]
DEFAULT_URI, DEFAULT_COLLECTION = "./step_traces.db", "step_traces"


@contextmanager
def opened(
    uri: str,
    collection: str,
    made: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Iterator[StepTraceBuffer]:
    """Open a buffer that makes keys as its collection does; a mistake is one line and exit status 1.

    Args:
        uri: address of Milvus.
        collection: its name.
        made: fields of ``BufferSettings`` on making keys; None as a value is the collection's own, a value that differs from it
            is refused later. None as a whole: no keys are made, so the model that made the present ones may be gone.
        keys: further fields of ``BufferSettings``.
    """
    from rapo_rllib.buffer.maker import adopted
    from rapo_rllib.buffer.store import StepTraceBuffer
    from rapo_rllib.settings import BufferSettings

    with one_line_errors():
        settings = BufferSettings(uri=uri, collection=collection, **keys)
        if made is not None:
            settings = replace(adopted(settings), **{key: value for key, value in made.items() if value is not None})
        with closing(StepTraceBuffer(settings)) as buffer:
            yield buffer


@buffer_app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Traces: .jsonl or .jsonl.gz.", show_default=False)],
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    embedder: NewEmbedder = None,
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
    evaluation: Evaluation = None,
) -> None:
    """Embed the traces of FILES and store them. Run it again to go on after an interruption, or to add more."""
    made = {"embedder": embedder, "pooling": pooling, "key_recipe": key_recipe, "key_history_tokens": key_history_tokens}
    with opened(uri, collection, made) as buffer:
        from rapo_rllib.buffer.files import ImportPlan, import_traces, survey

        guard, level = evaluation_guard(evaluation), buffer.settings.level
        plan = ImportPlan(tuple(files), format, source, max_traces, min_reward, guard, level)
        report = survey(plan)
        with resumable("step traces") as display:
            written = import_traces(buffer, plan, report, display)
        for name, count in report.given.items():
            typer.echo(f"source {name!r}: {count:,} step traces")
        for reason, count in report.dropped.items():
            typer.echo(f"left out: {count:,} ({reason})")
        done = f"{written.added:,} were added" + (f", {written.updated:,} were updated" if written.updated else "")
        typer.echo(f"{buffer.uri} ({collection}) holds {buffer.count():,} step traces; {done}.")


@buffer_app.command("search")
def search(
    text: Annotated[str, typer.Argument(help="A question; with --question: the steps so far.", show_default=False)],
    question: Annotated[str | None, typer.Option(help="The question, if TEXT is the history.")] = None,
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    top_k: Annotated[int, typer.Option(min=1, max=1000, help="How many step traces.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Show the step traces whose keys are nearest to a question, or to the history of one."""
    from rapo_rllib.types import HistoryQuery

    query = HistoryQuery(text, "") if question is None else HistoryQuery(question, text)
    with opened(uri, collection, {}) as buffer:
        (hits,) = buffer.retrieve([query], top_k)
        for number, hit in enumerate(hits, start=1):
            record = {"similarity": round(hit.similarity, 4), **asdict(hit.trace)}
            typer.echo(json.dumps(record, ensure_ascii=False) if as_json else _hit(number, hit))
        if not hits:
            typer.echo("Nothing was found.", err=True)


@buffer_app.command("stats")
def stats(
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    questions: Annotated[list[Path] | None, typer.Option(help="Training questions, for the coverage; .jsonl[.gz], ….")] = None,
    evaluation: Evaluation = None,
    as_json: AsJson = False,
) -> None:
    """Describe a buffer: sources, rewards, coverage; exit status 1 if something is wrong."""
    with opened(uri, collection) as buffer:
        from rapo_rllib.buffer.statistics import statistics

        texts = [text for path in questions or [] for text in question_texts(path, "--questions")]
        found = statistics(buffer, texts, evaluation_guard(evaluation))
        typer.echo(json.dumps(asdict(found), ensure_ascii=False) if as_json else "\n".join(_statistics(found)))
    if found.leaks or found.missing:
        raise typer.Exit(1)


@buffer_app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="Where to: .jsonl or .jsonl.gz.", show_default=False)],
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    overwrite: Annotated[bool, typer.Option("--replace", help="Write over an existing file.")] = False,
) -> None:
    """Write every step trace, with all that is known of it, to FILE; `import` makes the same buffer of it."""
    with opened(uri, collection) as buffer:
        from rapo_rllib.buffer.files import export_traces

        count = export_traces(buffer, file, overwrite)
        typer.echo(f"{file} holds the {count:,} step traces of {buffer.uri} ({collection}).")


@buffer_app.command("drop")
def drop(
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a buffer: its step traces, and what is noted about them."""
    with opened(uri, collection) as buffer:
        if buffer.note("embedder") is None:  # the note that is deleted last
            if buffer.exists():
                raise ValueError(f"collection {collection!r} at {buffer.uri} is no Step-Trace Buffer; nothing was deleted")
            raise ValueError(f"there is no collection {collection!r} at {buffer.uri}; correct --uri or --collection")
        typer.echo(f"{buffer.uri} ({collection}): {buffer.count():,} step traces and their notes will be deleted.")
        if not yes:
            typer.confirm("Delete them?", abort=True)
        buffer.drop()
        typer.echo("Deleted.")


def question_texts(path: Path, option: str) -> Iterator[str]:
    """Yield the questions of a file in a format of ``rapo/questions``; its rows need no answer.

    Raises:
        ValueError: the file is missing or of another format, or a row has no question.
    """
    from rapo_rllib.envs.dataset_files import is_file_name, read_rows
    from rapo_rllib.envs.dataset_rows import asked_text

    if not is_file_name(str(path)):
        raise ValueError(f"{option} {path}: not a file ending in .jsonl, .jsonl.gz, .json, .parquet or .csv")
    for number, row in enumerate(read_rows(str(path), option, "test"), start=1):
        yield asked_text(row, f"{path}, row {number}", None)[0]


def evaluation_guard(paths: Sequence[Path] | None) -> LeakGuard | None:
    """Make a leak guard of the questions of files; None without files. Raises ``ValueError`` like :func:`question_texts`."""
    from rapo_rllib.buffer.leak_guard import LeakGuard

    return LeakGuard(text for path in paths for text in question_texts(path, "--evaluation")) if paths else None


def _hit(number: int, hit: RetrievedTrace) -> str:
    trace = hit.trace
    about = f"step {trace.step_index} by {trace.source or 'unknown'}, reward {trace.reward:g}"
    return f"[{number}] {hit.similarity:.4f}  {about}\n{trace.question}\n---\n{trace.text.strip()}\n"


def _statistics(found: BufferStats) -> Iterator[str]:
    yield f"{found.where}, embedded by {found.embedder}"
    yield f"{found.traces:,} step traces of {found.trajectories:,} trajectories; {found.questions:,} different questions"
    if found.missing:
        yield f"WRONG: {found.missing:,} step traces are gone with damaged files; import or build again to add them"
    for question, count in found.leaks.items():
        yield f"WRONG: {count:,} step traces of a question of the evaluation: {question[:120]}"
    if found.asked:
        known = f"{found.covered:,} of {found.asked:,} ({found.covered / found.asked:.1%})"
        yield f"training questions with a trace: {known}"
    for name, count in sorted(found.by_source.items(), key=lambda each: -each[1]):
        yield f"source {name!r}: {count:,} step traces, mean reward {found.mean_reward_by_source[name]:.3g}"
