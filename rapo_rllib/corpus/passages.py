"""Passages from a JSON-lines file, plain or gzipped. Flow: file -> here -> ``build.py``.

A row is a passage, ``{"id": 7, "title": "Kiss and Tell", "text": "Kiss and Tell is ..."}``, or holds a list of them, as data
sets of multi-hop questions do: ``{"paragraphs": [{"title": ..., "text": ...}]}``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapo_rllib.milvus.schema import MAX_VARCHAR_BYTES
from rapo_rllib.traces.rows import json_rows
from rapo_rllib.validation import utf8_size

MAX_SOURCE_ID_BYTES = 1024


@dataclass(frozen=True)
class Passage:
    """A piece of text to be found.

    ``id`` is a hash of title and text, by which a stored passage is recognized, so that equal passages are stored once.
    ``source_id`` is the passage's id in its file.
    """

    id: str
    title: str
    text: str
    source_id: str = ""


def passage_id(title: str, text: str) -> str:
    """Return 32 hex digits of SHA-256 over title and text."""
    return hashlib.sha256(f"{title}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def read_passages(path: str | Path, passages_field: str | None = None) -> Iterator[Passage]:
    """Yield the passages of a file in its order: objects with ``text``, and perhaps ``title`` and ``id``.

    Args:
        path: a .jsonl or .jsonl.gz file.
        passages_field: field of a row that holds a list of passages; None: every row is a passage.

    Raises:
        ValueError: while iterating: the file is missing or unreadable, or a line is wrong; names file, line and field.
    """
    for where, row in json_rows(Path(path), "file"):
        if passages_field is None:
            yield _passage(row, where)
            continue
        listed = row.get(passages_field)
        if not isinstance(listed, list):
            raise ValueError(f"{where}: field {passages_field!r} must be a list of passages; {_known(row)}")
        for index, one in enumerate(listed):
            yield _passage(one, f"{where}, {passages_field}[{index}]")


def _passage(row: Any, where: str) -> Passage:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
    text, title, source_id = row.get("text"), row.get("title"), row.get("id")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: field 'text' must be a text that is not empty, got {text!r}; {_known(row)}")
    if not isinstance(title, str | None):
        raise ValueError(f"{where}: field 'title' must be a text, got {title!r}")
    if isinstance(source_id, bool) or not isinstance(source_id, str | int | None):
        raise ValueError(f"{where}: field 'id' must be a text or a whole number, got {source_id!r}")
    passage = Passage(passage_id(title or "", text), title or "", text, "" if source_id is None else str(source_id))
    sizes = (("text", f"{passage.title}\n{text}", MAX_VARCHAR_BYTES), ("id", passage.source_id, MAX_SOURCE_ID_BYTES))
    for field, value, most in sizes:
        what = f"{where}: field {field!r}"
        if (size := utf8_size(value, what)) > most:
            raise ValueError(f"{what} has {size} bytes (a text with its title); Milvus stores {most}. Split or shorten it.")
    return passage


def _known(row: dict[str, Any]) -> str:
    return f"fields of this row: {', '.join(map(str, row)) or 'none'}"
