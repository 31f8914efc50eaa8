"""``rllib corpus``: make a collection of passages, look into it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rapo_rllib.cli.options import Collection, NewEmbedder, Uri
from rapo_rllib.cli.terminal import one_line_errors, resumable

if TYPE_CHECKING:
    from rapo_rllib.corpus.collection import PassageCollection

corpus_app = typer.Typer(no_args_is_help=True, help="Passages for the search tool, in Milvus.")


@corpus_app.command("build")
def build(
    file: Annotated[Path, typer.Argument(help="Passages, {title, text, id}: .jsonl or .jsonl.gz.", show_default=False)],
    uri: Uri = "./corpus.db",
    collection: Collection = "passages",
    embedder: NewEmbedder = None,
    device: Annotated[str, typer.Option(help="What the embedder runs on, for example cuda.")] = "cpu",
    passages_field: Annotated[
        str | None, typer.Option(help="Field that holds a list of passages, if a row is not one itself (e.g. paragraphs).")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Delete what the collection holds first.")] = False,
) -> None:
    """Embed the passages of FILE and store them. Run it again to go on after an interruption, or to add another file."""
    with _opened(uri, collection, embedder, device) as passages:
        from rapo_rllib.corpus.build import build_corpus

        with resumable("passages", "The command without --replace" if replace else "The same command") as display:
            done = build_corpus(passages, file, passages_field, display, replace)
        typer.echo(f"Collection {passages.where} holds {passages.count():,} passages; {done.embedded:,} were added.")


@corpus_app.command("search")
def search(
    query: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    uri: Uri = "./corpus.db",
    collection: Collection = "passages",
    top_k: Annotated[int, typer.Option(min=1, max=1000, help="How many passages.")] = 3,
    mode: Annotated[str, typer.Option(help="dense, bm25, or hybrid: both.")] = "hybrid",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a passage.")] = False,
) -> None:
    """Show the passages that are found for QUERY."""
    with _opened(uri, collection) as passages:
        (hits,) = passages.search([query], top_k, mode)
        for number, hit in enumerate(hits, start=1):
            passage, score = hit.passage, hit.score
            record = {"score": score, "id": passage.source_id or passage.id, "title": passage.title, "text": passage.text}
            shown = f"[{number}] {passage.title}  ({score:.4f})\n{passage.text}\n"
            typer.echo(json.dumps(record, ensure_ascii=False) if as_json else shown)
        if not hits:
            typer.echo("Nothing was found.", err=True)


@corpus_app.command("stats")
def stats(
    uri: Uri = "./corpus.db",
    collection: Collection = "passages",
) -> None:
    """Say what a collection holds and what it was made with."""
    with _opened(uri, collection) as passages:
        facts = passages.facts()
        typer.echo(f"Collection {passages.where}: {passages.count():,} passages")
        typer.echo(f"embedder: {facts['embedder']}")
        typer.echo(f"files: {', '.join(facts['files']) or 'none complete'}")
        if facts["begun"]:
            typer.secho(f"Not complete: run `rllib corpus build` again for {', '.join(facts['begun'])}.", fg="yellow")


@contextmanager
def _opened(uri: str, collection: str, embedder: str | None = None, device: str = "cpu") -> Iterator[PassageCollection]:
    """Open the collection, and close it afterwards. A mistake or a missing service is one line and exit status 1."""
    from rapo_rllib.corpus.collection import CorpusPlace, PassageCollection

    with one_line_errors():
        passages = PassageCollection(CorpusPlace(uri, collection, prefix="--"), embedder, device)
        with closing(passages):
            yield passages
