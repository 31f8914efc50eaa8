"""Common base of the buffer and the corpus: rows that are found by their vectors, and notes beside the rows."""

from __future__ import annotations

import json
from typing import Any

from rapo_rllib.milvus.handle import Milvus
from rapo_rllib.milvus.schema import Field

FIELDS = (Field("id", max_bytes=256), Field("value"))  # columns of the notes


class Collection:
    """A Milvus collection, and a second one beside it, ``<collection>_notes``, that holds JSON objects (notes) by name.

    Every method but ``close`` raises ``RetrievalError`` when Milvus does not answer.
    """

    def __init__(self, milvus: Milvus, collection: str) -> None:
        self.milvus, self.collection = milvus, collection
        self._notes = f"{collection}_notes"

    @property
    def uri(self) -> str:
        """The URI in use; a Lite path is absolute."""
        return self.milvus.uri

    @property
    def where(self) -> str:
        """The collection and its place, for messages."""
        return f"{self.collection!r} at {self.uri}"

    def exists(self) -> bool:
        """Return whether the collection exists."""
        return self.milvus.exists(self.collection)

    def count(self) -> int:
        """Return the number of rows; 0 if the collection does not exist."""
        return self.milvus.count(self.collection) if self.exists() else 0

    def note(self, name: str) -> dict[str, Any] | None:
        """Return the note that :meth:`set_note` stored under ``name``; None if there is none."""
        rows = self.milvus.get(self._notes, [name], ["value"]) if self.milvus.exists(self._notes) else []
        return json.loads(rows[0]["value"]) if rows else None

    def set_note(self, name: str, value: dict) -> None:
        """Store a small JSON object beside the rows."""
        import numpy as np

        self.milvus.create(self._notes, FIELDS, 2)  # a collection needs vectors
        row = {"id": name, "value": json.dumps(value)}
        self.milvus.upsert(self._notes, [row], np.ones((1, 2), dtype=np.float32))

    def drop_notes(self) -> None:
        """Delete the notes. Call this last: the notes identify a collection, so a drop that was killed halfway can go on."""
        self.milvus.drop(self._notes)

    def close(self) -> None:
        """Disconnect. The next call connects again."""
        self.milvus.close()
