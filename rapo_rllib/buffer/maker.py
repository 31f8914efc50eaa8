"""Record the embedder and the level that made the keys of a buffer, and refuse others.

``store.py`` stores the record (:func:`maker_of`) beside the step traces and calls :func:`check_maker` whenever a buffer is
opened. Commands that need no embedder of their own take over the recorded one (:func:`adopted`).
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
    """Return the record of an embedder and of the level of its traces, as JSON."""
    return {
        "name": lasting_name(embedder.name),
        "level": level,
        **made_by(embedder.fingerprint, embedder.encoder.probe),
    }


def check_maker(stored: dict[str, Any] | None, embedder: Embedder, level: str, where: str) -> None:
    """Refuse a collection whose keys were made by another embedder or at another level.

    Args:
        stored: the record beside the collection (:func:`maker_of`); None: there is none.
        embedder: the present embedder.
        level: whether a trace is a step or a whole trajectory.
        where: the collection, for messages.

    Raises:
        ValueError: the collection is no Step-Trace Buffer, or was made by another embedder or at another level.
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
    """Return the settings; if the collection exists, with its embedder, pooling, key recipe, ``key_history_tokens`` and level.

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
