"""Read what a collection was made with, for commands that need not ask again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rapo_rllib.buffer.choices import URI_KEY
from rapo_rllib.buffer.keys import RECIPES
from rapo_rllib.buffer.maker import MADE_BY, MAKER, fingerprint_of
from rapo_rllib.embedding.local import PACKAGED_EMBEDDERS
from rapo_rllib.milvus.handle import milvus_at
from rapo_rllib.milvus.notes import Notes
from rapo_rllib.settings import BufferSettings


def adopted(settings: BufferSettings) -> BufferSettings:
    """The settings, with embedder, pooling, key recipe and level as the collection has them. Unchanged if there is none.

    Raises:
        ValueError: ``settings.uri`` is wrong.
        RetrievalError: Milvus does not answer.
    """
    milvus = milvus_at(settings.uri, settings.db_name, settings.timeout_s, uri_key=URI_KEY)
    try:
        made_by = Notes(milvus, settings.collection).get(MADE_BY, MAKER) if milvus.exists(settings.collection) else None
    finally:
        milvus.close()
    if made_by is None:
        return settings
    facts = fingerprint_of(made_by)
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


def lasting_name(name: str) -> str:
    """Return a name that means the same wherever a command runs: of a folder its absolute path; other names as they are."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if name not in PACKAGED_EMBEDDERS and folder.is_dir() else name
