"""Passages from a JSON-lines file, plain or gzipped. Flow: file -> here -> ``build.py``.

A row is a passage, ``{"id": 7, "title": "Kiss and Tell", "text": "Kiss and Tell is ..."}``, or holds a list of them, as data
sets of multi-hop questions do: ``{"paragraphs": [{"title": ..., "text": ...}]}`` with ``PassageFields(passages="paragraphs")``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapo_rllib.milvus.schema import MAX_VARCHAR_BYTES
from rapo_rllib.traces.rows import json_rows

MAX_SOURCE_ID_BYTES = 1024


@dataclass(frozen=True)
class Passage:
    """A piece of text to be found.

    ``id`` comes from title and text, so that a passage which is stored already is known, and equal ones are stored once; what a
    file calls it is ``source_id``.
    """

    id: str
    title: str
    text: str
    source_id: str = ""


@dataclass(frozen=True)
class PassageFields:
    """The names of a row's fields."""

    text: str = "text"
    title: str = "title"  # may be missing
    id: str = "id"  # may be missing
    passages: str | None = None  # field that holds a list of passages; None: the row is one


def passage_id(title: str, text: str) -> str:
    """32 hex digits of SHA-256 over title and text."""
    return hashlib.sha256(f"{title}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def read_passages(path: str | Path, fields: PassageFields | None = None) -> Iterator[Passage]:
    """Yield the passages of a file in its order.

    Raises:
        ValueError: the file is missing or unreadable, or a line is wrong: naming file, line and field. Raised while iterating.
    """
    fields = fields or PassageFields()
    for where, row in json_rows(Path(path), "file"):
        if fields.passages is None:
            yield _passage(row, where, fields)
            continue
        listed = row.get(fields.passages)
        if not isinstance(listed, list):
            raise ValueError(f"{where}: field {fields.passages!r} must be a list of passages; {_known(row)}")
        for index, one in enumerate(listed):
            yield _passage(one, f"{where}, {fields.passages}[{index}]", fields)


def _passage(row: Any, where: str, fields: PassageFields) -> Passage:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
    text, title, source_id = row.get(fields.text), row.get(fields.title), row.get(fields.id)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: field {fields.text!r} must be a text that is not empty, got {text!r}; {_known(row)}")
    if title is not None and not isinstance(title, str):
        raise ValueError(f"{where}: field {fields.title!r} must be a text, got {title!r}")
    if source_id is not None and (isinstance(source_id, bool) or not isinstance(source_id, (str, int))):
        raise ValueError(f"{where}: field {fields.id!r} must be a text or a whole number, got {source_id!r}")
    passage = Passage(passage_id(title or "", text), title or "", text, "" if source_id is None else str(source_id))
    for name, value, most in (
        (fields.text, f"{passage.title}\n{text}", MAX_VARCHAR_BYTES),
        (fields.id, passage.source_id, MAX_SOURCE_ID_BYTES),
    ):
        _check_size(value, most, f"{where}: field {name!r}")
    return passage


def _check_size(value: str, most: int, what: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what}: no valid Unicode ({error.reason} at character {error.start})") from error
    if size > most:
        raise ValueError(f"{what} has {size} bytes (a text with its title); Milvus stores {most}. Split or shorten it.")


def _known(row: dict[str, Any]) -> str:
    return f"fields of this row: {', '.join(map(str, row)) or 'none'}"
