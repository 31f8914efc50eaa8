"""Small facts beside a collection: which embedder made it, from what. Stored in ``<collection>_notes``."""

from __future__ import annotations

import json
from typing import Any

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.handle import Milvus
from rapo_rllib.milvus.schema import Field
from rapo_rllib.services.json_files import parsed

FIELDS = (Field("id", max_bytes=256), Field("value"))


class Notes:
    """JSON objects by name. Raises ``RetrievalError`` when Milvus does not answer."""

    def __init__(self, milvus: Milvus, collection: str) -> None:
        self._milvus, self._collection = milvus, f"{collection}_notes"

    def get(self, name: str, shape: Any = dict) -> dict | None:
        """Return what :meth:`set` stored under ``name``.

        Raises:
            RetrievalError: that is of another shape (see ``json_files.py``), or Milvus does not answer.
        """
        if not self._milvus.exists(self._collection):
            return None
        rows = self._milvus.get(self._collection, [name], ["value"])
        try:
            return parsed(rows[0]["value"], shape, f"the note {name!r} of {self._collection!r}") if rows else None
        except ValueError as error:
            raise RetrievalError(
                f"Milvus at {self._milvus.uri}: {error}. Restore a copy, or drop the collection and fill it anew."
            ) from error

    def set(self, name: str, value: dict) -> None:
        """Store a small JSON object."""
        import numpy as np

        self._milvus.create(self._collection, FIELDS, 2)  # a collection needs vectors
        row = {"id": name, "value": json.dumps(value)}
        self._milvus.upsert(self._collection, [row], np.ones((1, 2), dtype=np.float32))

    def drop(self) -> None:
        """Delete them all."""
        self._milvus.drop(self._collection)
