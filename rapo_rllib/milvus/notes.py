"""Small facts beside a collection: which embedder made it, from what, which version. Stored in ``<collection>_notes``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.handle import Milvus
from rapo_rllib.milvus.schema import Field
from rapo_rllib.services.json_files import parsed


class SideRows:
    """Rows without vectors that lie beside a collection, in ``<collection>_<kind>``.

    Raises ``RetrievalError`` when Milvus does not answer.
    """

    kind: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]]
    batch: ClassVar[int] = 1000  # rows of one request

    def __init__(self, milvus: Milvus, collection: str) -> None:
        self._milvus, self._collection = milvus, f"{collection}_{self.kind}"

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        import numpy as np

        self._milvus.create(self._collection, self.fields, 2)  # a collection needs vectors
        for start in range(0, len(rows), self.batch):
            part = rows[start : start + self.batch]
            self._milvus.upsert(self._collection, part, np.ones((len(part), 2), dtype=np.float32))

    def drop(self) -> None:
        """Delete them all."""
        self._milvus.drop(self._collection)


VERSION_NOTE = "version"  # changes whenever rows are added, changed or deleted
VERSION = {"version": str}  # its shape


class Notes(SideRows):
    """JSON objects by name."""

    kind, fields = "notes", (Field("id", max_bytes=256), Field("value"))

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
        self._write([{"id": name, "value": json.dumps(value)}])


class Version:
    """The version of a collection's content, for those who keep something that they made of it."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def change(self) -> None:
        """Tell all who ask that rows were written or deleted."""
        self._notes.set(VERSION_NOTE, {"version": uuid.uuid4().hex})

    def get(self) -> str:
        """Return it; "" of a collection that was never written."""
        return str((self._notes.get(VERSION_NOTE, VERSION) or {}).get("version", ""))
