"""Tell what made the keys of a collection, and whether an embedder that is here makes comparable ones.

``store.py`` stores :func:`maker_of` beside the step traces and asks :func:`check_maker` whenever a buffer is opened; commands
that need not ask take it over (:func:`adopted`). Stored:
recipe, name of the embedder, hash of its weights, length, the precision it ran in, normalisation, pooling; and the vector of
a fixed text, by which an endpoint is known, whose weights nobody sees, and what a model's folder says beside its weights.

The precision is there to be read, not to be compared: it depends on the machine, and the cosine between bfloat16 and float32
vectors of the same weights is above 0.99.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.buffer.choices import URI_KEY
from rapo_rllib.buffer.keys import RECIPES
from rapo_rllib.embedding.local import MIN_PROBE_COSINE, PACKAGED_EMBEDDERS, probe_cosine, stored_probe
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.handle import milvus_at
from rapo_rllib.milvus.notes import Notes
from rapo_rllib.services.json_files import parsed
from rapo_rllib.settings import BufferSettings

if TYPE_CHECKING:
    from rapo_rllib.buffer.embedder import Embedder

MADE_BY = "embedder"  # the note's name
MAKER = {"name": str, "fingerprint": str, "pooling": str, "tokenizer": str | None, "level": str, "probe": [float]}


def maker_of(embedder: Embedder) -> dict[str, Any]:
    """Facts that are stored about an embedder, as JSON."""
    return {
        "name": _lasting_name(embedder.name),
        "fingerprint": embedder.fingerprint,
        "pooling": embedder.pooling,
        "dtype": embedder.encoder.dtype,
        "tokenizer": embedder.tokenizer and _lasting_name(embedder.tokenizer),
        "probe": stored_probe(embedder.encoder.probe),
    }


def check_maker(stored: dict[str, Any] | None, embedder: Embedder, level: str, where: str) -> None:
    """Refuse a collection that other keys were made for.

    Args:
        stored: what stands beside it (:func:`maker_of`, and ``level``); None: nothing does.
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
    if different := _differences(stored, embedder):
        raise ValueError(
            f"step_trace_buffer.embedder: {where} was embedded by {stored['name']!r}, and {embedder.name!r} as it is here "
            f"makes other vectors ({'; '.join(different)}). Name that embedder (with its pooling, key_recipe and "
            "key_…_tokens), or another collection."
        )
    built = stored["level"]
    if built != level:
        raise ValueError(
            f"retrieval_level = {level!r}: the buffer in step_trace_buffer.collection {where} was built with {built!r}. Name "
            "another collection or uri."
        )


def adopted(settings: BufferSettings) -> BufferSettings:
    """The settings, with embedder, pooling, key recipe and level as the collection has them. Unchanged if there is none.

    Raises:
        ValueError: ``settings.uri`` is wrong.
        RetrievalError: Milvus does not answer.
    """
    with closing(milvus_at(settings.uri, settings.db_name, settings.timeout_s, uri_key=URI_KEY)) as milvus:
        made_by = Notes(milvus, settings.collection).get(MADE_BY, MAKER) if milvus.exists(settings.collection) else None
    if made_by is None:
        return settings
    facts = _fingerprint_of(made_by)
    recipes: dict[str, Any] = {text: name for name, text in RECIPES.items()}
    return replace(
        settings,
        level=made_by["level"],
        embedder=made_by["name"],
        embedder_tokenizer=made_by["tokenizer"],
        pooling=facts.get("pooling", settings.pooling),
        key_recipe=recipes.get(str(facts.get("recipe")), settings.key_recipe),
        key_history_tokens=facts.get("key_history_tokens"),
    )


def _lasting_name(name: str) -> str:
    """Return a name that means the same wherever a command runs: of a folder its absolute path; other names as they are."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if name not in PACKAGED_EMBEDDERS and folder.is_dir() else name


def _fingerprint_of(stored: dict[str, Any]) -> dict[str, Any]:
    """Parse the fingerprint of a collection's maker. Raises ``RetrievalError`` where it is none."""
    try:
        return dict(parsed(stored["fingerprint"], dict, f"the fingerprint in the note {MADE_BY!r}"))
    except ValueError as error:
        raise RetrievalError(f"step_trace_buffer: {error}. Restore a copy, or drop the buffer and build it anew.") from error


def _differences(stored: dict[str, Any], embedder: Embedder) -> list[str]:
    """List what tells ``embedder`` from the one that made a collection, a sentence each; empty: their vectors are comparable.

    Example: ``["pooling: 'mean' there, 'last_token' here"]``
    """
    there, here = _fingerprint_of(stored), json.loads(embedder.fingerprint)
    there.setdefault("pooling", "mean")
    here.setdefault("pooling", "mean")
    found = [
        f"{name}: {there.get(name)!r} there, {here.get(name)!r} here"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]
    if not found:
        cosine = probe_cosine(stored["probe"], embedder.encoder.probe)
        if cosine < MIN_PROBE_COSINE:
            found.append(
                f"the vector of a fixed text: a cosine of {cosine:.3f} between the one stored there and the one made here"
            )
    return found
