"""Values above 65,535 bytes, the most that Milvus stores in a column: what does not fit lies in part rows.

    rows --split_oversized--> part rows, written first; rows with the beginning of each value and the number of their part rows
    rows --whole--> the same rows with their whole values; part rows are read only where there are any

The part rows of row ``r`` have the ids ``r/0``, ``r/1``, …, in the order of the text, in a collection beside that of ``r``.
They are written before ``r``, so that whoever finds ``r`` finds its parts, whenever the writer was killed; writing again
replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.notes import SideRows
from rapo_rllib.milvus.schema import MAX_VARCHAR_BYTES, Field

COUNT = "parts"  # column of the rows: how many part rows they have
FIELDS = (Field("id", max_bytes=300), Field("column_name", max_bytes=64), Field("value"))
NAMES = tuple(field.name for field in FIELDS)


class PartRows(SideRows):
    """The part rows of one collection."""

    kind, fields = "parts", FIELDS
    batch = 256  # 16 MB; a server takes 64 MB

    def split_oversized(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write what does not fit into the columns of ``rows``; returns the rows as they fit, with the column ``parts``."""
        short, parts = [], []
        for row in rows:
            beginning, rest = _split(row)
            short.append(beginning)
            parts += rest
        if parts:
            self._write(parts)
        return short

    def whole(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows (with ``id`` and ``parts``) with their whole values.

        Raises:
            RetrievalError: a part row is gone: somebody else deleted it.
        """
        ids = {row["id"]: _part_ids(row) for row in rows if row[COUNT]}
        if not ids:
            return list(rows)
        parts = self._read([part for those in ids.values() for part in those])
        return [_joined(row, [parts[part] for part in ids[row["id"]]]) if row[COUNT] else row for row in rows]

    def delete(self, rows: Sequence[dict[str, Any]]) -> None:
        """Delete the part rows of these rows (with ``id`` and ``parts``)."""
        self._milvus.delete(self._collection, [part for row in rows for part in _part_ids(row)])

    def _read(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for latest in (False, True):  # to read what was written just now takes longer
            missing = [key for key in ids if key not in found]
            for start in range(0, len(missing), self.batch):
                some = missing[start : start + self.batch]
                found |= {row["id"]: row for row in self._milvus.get(self._collection, some, NAMES, latest=latest)}
        if missing := [key for key in ids if key not in found]:
            raise RetrievalError(
                f"Milvus at {self._milvus.uri}: {len(missing)} part rows of collection {self._collection!r} are gone, as "
                f"{missing[0]!r}. Drop the buffer and build it again."
            )
        return found


def pieces(text: str) -> list[str]:
    """``text`` cut at character boundaries, as few pieces of at most 65,535 bytes as there can be.

    Example: 65,534 x "a" followed by "éb" are two pieces, since the two bytes of "é" stay together.
    """
    encoded, found, start = text.encode(), [], 0
    while len(encoded) - start > MAX_VARCHAR_BYTES:
        end = start + MAX_VARCHAR_BYTES
        while encoded[end] & 0xC0 == 0x80:  # in the middle of a character
            end -= 1
        found.append(encoded[start:end].decode())
        start = end
    return [*found, encoded[start:].decode()]


def _part_ids(row: dict[str, Any]) -> list[str]:
    return [f"{row['id']}/{number}" for number in range(row[COUNT])]


def _split(row: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row as it fits, with the number of its parts; and these."""
    short, rest = dict(row), []
    for name, value in row.items():
        if isinstance(value, str):
            short[name], *more = pieces(value)
            rest += [(name, piece) for piece in more]
    short[COUNT] = len(rest)
    ids = _part_ids(short)
    return short, [{"id": key, "column_name": name, "value": piece} for key, (name, piece) in zip(ids, rest, strict=True)]


def _joined(row: dict[str, Any], parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    texts: dict[str, list[str]] = {}
    for part in parts:
        texts.setdefault(part["column_name"], [row[part["column_name"]]]).append(part["value"])
    return {**row, **{name: "".join(those) for name, those in texts.items()}}
