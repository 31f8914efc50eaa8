"""Options that all ``rllib buffer`` commands share: where the buffer is, and how mistakes are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rapo_rllib.cli.endings import one_line_errors

if TYPE_CHECKING:
    from rapo_rllib.buffer.store import StepTraceBuffer
    from rapo_rllib.settings import BufferSettings

buffer_app = typer.Typer(no_args_is_help=True, help="The Step-Trace Buffer: steps of off-policy agents, in Milvus.")

Uri = Annotated[str, typer.Option(help="A Milvus Lite path ending in .db, or http(s)://host:port.")]
Collection = Annotated[str, typer.Option(help="Name of the Milvus collection.")]
DbName = Annotated[str, typer.Option(help="Database of a server.")]
StoredEmbedder = Annotated[
    str | None, typer.Option("--embedder", help="The one that the buffer must have been made with (default: whichever it was).")
]
DEFAULT_URI, DEFAULT_COLLECTION = "./step_traces.db", "step_traces"


@contextmanager
def opened(**keys: Any) -> Iterator[StepTraceBuffer]:
    """The buffer of ``BufferSettings(**keys)``, closed afterwards; a mistake is one line and exit status 1."""
    from rapo_rllib.settings import BufferSettings

    with one_line_errors(), _open(BufferSettings(**keys)) as buffer:
        yield buffer


@contextmanager
def opened_as_stored(
    embedder: str | None,
    pooling: str | None = None,
    key_recipe: str | None = None,
    key_history_tokens: int | None = None,
    **keys: Any,
) -> Iterator[StepTraceBuffer]:
    """Do :func:`opened`, with the collection's own way to make keys, or the default one for a new collection.

    Args:
        embedder: insists on one, which is refused later if the collection has another.
        pooling: the same.
        key_recipe: the same.
        key_history_tokens: the same.
        keys: further ones of ``BufferSettings``.
    """
    from rapo_rllib.buffer.maker import adopted
    from rapo_rllib.settings import BufferSettings

    insisted: dict[str, Any] = {
        "embedder": embedder,
        "pooling": pooling,
        "key_recipe": key_recipe,
        "key_history_tokens": key_history_tokens,
    }
    with one_line_errors():
        stored = adopted(BufferSettings(**keys))
        chosen = replace(stored, **{key: value for key, value in insisted.items() if value is not None})
        with _open(chosen) as buffer:
            yield buffer


@contextmanager
def _open(settings: BufferSettings) -> Iterator[StepTraceBuffer]:
    from rapo_rllib.buffer.store import StepTraceBuffer

    buffer = StepTraceBuffer(settings)
    try:
        yield buffer
    finally:
        buffer.close()
