"""Note how many step traces were stored, so that a damaged buffer is not taken for a smaller one.

Milvus Lite opens a folder whose write-ahead log or data files were cut off or deleted, and serves what is left without a word.
"""

from __future__ import annotations

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.handle import Milvus
from rapo_rllib.milvus.notes import Notes

NOTE = "stored"


class Ledger:
    """The noted number of one collection's rows. Every method raises ``RetrievalError`` when Milvus does not answer."""

    def __init__(self, milvus: Milvus, collection: str) -> None:
        self._milvus, self._collection = milvus, collection
        self._notes = Notes(milvus, collection)

    def add_up(self) -> None:
        """After rows were added: note their number. A damaged collection stays one until nothing is missing."""
        count = self._milvus.count(self._collection)
        if count > self._noted():
            self._notes.set(NOTE, {"count": count})

    def behind(self) -> bool:
        """Whether there are more rows than noted: who added them, or deleted others, was killed before the end."""
        return self._milvus.count(self._collection) > self._noted()

    def lower(self, count: int) -> None:
        """Before ``count`` rows are deleted; who is killed in between leaves more rows than noted, which is no damage."""
        self._notes.set(NOTE, {"count": max(self._noted() - count, 0)})

    def forget(self) -> None:
        """After all rows were deleted."""
        if self._noted():
            self._notes.set(NOTE, {"count": 0})

    def missing(self) -> int:
        """Number of rows that were stored and are gone."""
        noted = self._noted()
        return (
            max(noted - self._milvus.count(self._collection), 0) if noted and self._milvus.exists(self._collection) else noted
        )

    def check(self) -> None:
        """Raise ``RetrievalError`` if rows are gone."""
        if missing := self.missing():
            raise RetrievalError(
                f"step_trace_buffer: {missing} of {self._noted()} step traces in collection {self._collection!r} at "
                f"{self._milvus.uri} are gone: its files are damaged. Restore a copy, import the same traces again, which adds "
                "what is missing, or drop the buffer and build it anew."
            )

    def _noted(self) -> int:
        return int((self._notes.get(NOTE, {"count": int}) or {}).get("count", 0))
