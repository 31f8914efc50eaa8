"""Tell what made the keys of a buffer, and refuse an embedder or a level that does not go with them.

``store.py`` stores :func:`maker_of` beside the step traces and asks :func:`check_maker` whenever a buffer is opened; commands
that need not ask take it over (:func:`adopted`).
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rapo_rllib.buffer.keys import RECIPES
from rapo_rllib.embedding.made_by import difference, lasting_name, made_by
from rapo_rllib.milvus.collection import Collection
from rapo_rllib.milvus.handle import milvus_at
from rapo_rllib.settings import BufferSettings

if TYPE_CHECKING:
    from rapo_rllib.buffer.embedder import Embedder

MADE_BY = "embedder"  # the note's name
URI_KEY = "step_trace_buffer.uri"  # what the user calls it, for messages


def maker_of(embedder: Embedder, level: str) -> dict[str, Any]:
    """Return the facts that are stored about an embedder and the level of its traces, as JSON."""
    return {
        "name": lasting_name(embedder.name),
        "level": level,
        **made_by(embedder.fingerprint, embedder.encoder.probe),
    }


def check_maker(stored: dict[str, Any] | None, embedder: Embedder, level: str, where: str) -> None:
    """Refuse a collection that other keys were made for.

    Args:
        stored: what stands beside it (:func:`maker_of`); None: nothing does.
        embedder: the one that is here.
        level: whether a trace is a step or a whole trajectory.
        where: the collection, for messages.

    Raises:
        ValueError: it is no Step-Trace Buffer, or was made by another embedder or at another level.
    """
    if stored is None:
        raise ValueError(
            f"step_trace_buffer.collection: {where} is no Step-Trace Buffer of this package; name another collection"
        )
    if different := difference(stored, embedder.fingerprint, embedder.encoder.probe):
        raise ValueError(
            f"step_trace_buffer.embedder: {where} was embedded by {stored['name']!r}, and {embedder.name!r} as it is here "
            f"makes other vectors ({different}). Name that embedder (with its pooling, key_recipe and "
            "key_…_tokens), or another collection."
        )
    built = stored["level"]
    if built != level:
        raise ValueError(
            f"retrieval_level = {level!r}: the buffer in step_trace_buffer.collection {where} was built with {built!r}. Name "
            "another collection or uri."
        )


def adopted(settings: BufferSettings) -> BufferSettings:
    """Return the settings, with embedder, pooling, key recipe and level as the collection has them. Unchanged if there is none.

    Raises:
        ValueError: ``settings.uri`` is wrong.
        RetrievalError: Milvus does not answer.
    """
    with closing(milvus_at(settings.uri, settings.timeout_s, uri_key=URI_KEY)) as milvus:
        stored = Collection(milvus, settings.collection).note(MADE_BY) if milvus.exists(settings.collection) else None
    if stored is None:
        return settings
    facts = json.loads(stored["fingerprint"])
    recipes: dict[str, Any] = {text: name for name, text in RECIPES.items()}
    return replace(
        settings,
        level=stored["level"],
        embedder=stored["name"],
        pooling=facts.get("pooling", settings.pooling),
        key_recipe=recipes.get(str(facts.get("recipe")), settings.key_recipe),
        key_history_tokens=facts.get("key_history_tokens"),
    )
