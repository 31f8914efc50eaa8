"""Small facts beside a collection: which embedder made it, from what, which version. Stored in ``<collection>_notes``."""

from __future__ import annotations

import json

from rapo_rllib.milvus.handle import MilvusHandle
from rapo_rllib.milvus.schema import Field

FIELDS = (Field("id", max_bytes=256), Field("value"))


class Notes:
    """JSON objects by name. Raises ``RetrievalError`` when Milvus does not answer."""

    def __init__(self, milvus: MilvusHandle, collection: str) -> None:
        self._milvus = milvus
        self._collection = f"{collection}_notes"

    def get(self, name: str) -> dict | None:
        """Return what :meth:`set` stored under ``name``."""
        if not self._milvus.exists(self._collection):
            return None
        rows = self._milvus.get(self._collection, [name], ["value"])
        return json.loads(rows[0]["value"]) if rows else None

    def set(self, name: str, value: dict) -> None:
        """Store a small JSON object."""
        import numpy as np

        self._milvus.create(self._collection, FIELDS, 2)  # a collection needs vectors
        self._milvus.upsert(self._collection, [{"id": name, "value": json.dumps(value)}], np.ones((1, 2), dtype=np.float32))

    def drop(self) -> None:
        """Delete all notes."""
        self._milvus.drop(self._collection)
