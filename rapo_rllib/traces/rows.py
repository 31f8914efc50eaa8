"""JSON rows of a file, and their fields, for readers whose errors name file, line and field."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from rapo_rllib.types import ExpertTrajectory, StepTrace
from rapo_rllib.validation import utf8_size

MAX_ID_BYTES, MAX_NAME_BYTES = 256, 1024  # UTF-8; sizes of a buffer's columns: a step's id; question_id and source
MAX_INT64 = 2**63 - 1
BYTE_ORDER_MARK = "\ufeff"  # which some editors and spreadsheets write before a text, to say that it is UTF-8
Item = TypeVar("Item", ExpertTrajectory, StepTrace)


@dataclass(frozen=True)
class BuildProgress:
    """Progress of storing rows: ``done`` of ``total`` were looked at, ``embedded`` of these were not stored before."""

    done: int
    embedded: int
    total: int

    @property
    def found(self) -> int:
        """The number of rows that were stored before."""
        return self.done - self.embedded


def windows(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of ``size``, the last of them shorter."""
    iterator = iter(items)
    while window := list(islice(iterator, size)):
        yield window


def json_rows(path: Path, what: str = "trace file") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a ``.jsonl`` or ``.jsonl.gz`` file, each after ``FILE, line N``.

    Raises:
        ValueError: the file is missing or unreadable, or a line is no JSON object.
    """
    for number, line in numbered_lines(path.expanduser(), what):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: no JSON ({error.msg} at character {error.pos})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
        yield where, row


def text_field(row: dict[str, Any], field: str, where: str, default: str | None = None) -> str:
    """Read a text from a field. Raises ``ValueError`` for anything else."""
    value = row.get(field, default)
    if not isinstance(value, str):
        raise ValueError(f"{where}: field {field!r} must be a text, got {repr(value)[:80]}")
    return value


def truth_field(row: dict[str, Any], field: str, where: str) -> bool | None:
    """Read true or 1, false or 0 from a field; None if it is missing or null. Raises ``ValueError`` for anything else."""
    value = row.get(field)
    if value is not None and value not in (True, False):
        raise ValueError(f"{where}: field {field!r} must be true or false, got {repr(value)[:80]}; mend it, or leave it out")
    return value if value is None else bool(value)


def reward_field(row: dict[str, Any], where: str, default: float, field: str = "reward") -> float:
    """Read a finite number; ``default`` if the field is missing or null. Raises ``ValueError`` for anything else."""
    value = row.get(field)
    if value is None:
        return default
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max:  # refuses NaN, and whole numbers too large for a float
        raise ValueError(f"{where}: field {field!r} must be a finite number, got {str(value)[:80]!r}")
    return float(value)


def whole_number_field(row: dict[str, Any], field: str, where: str, default: int) -> int:
    """Read a whole number of 64 bits from a field. Raises ``ValueError`` for anything else."""
    value = row.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INT64:
        raise ValueError(f"{where}: field {field!r} must be a whole number of 64 bits, got {str(value)[:80]!r}")
    return value


def storable(item: Item, where: str) -> Item:
    """Check that a buffer can store ``item``, and return it.

    Raises:
        ValueError: a text holds half a character, or a name is longer than its column; names file, line and field.
    """
    names: list[tuple[str, str, int]]
    texts: list[tuple[str, str]]
    if isinstance(item, StepTrace):
        names = [("id", item.id, MAX_ID_BYTES), ("question_id", item.question_id, MAX_NAME_BYTES)]
        texts = [("question", item.question), ("history", item.history), ("text", item.text)]
    else:
        names = [("id", item.question.id, MAX_NAME_BYTES)]
        texts = [("question", item.question.text), *(("steps", step) for step in item.steps)]
    for field, name, max_bytes in [*names, ("source", item.source, MAX_NAME_BYTES)]:
        if (size := utf8_size(name, f"{where}: field {field!r}")) > max_bytes:
            raise ValueError(f"{where}: field {field!r} has {size:,} bytes and must have at most {max_bytes:,}; shorten it")
    for field, text in texts:
        utf8_size(text, f"{where}: field {field!r}")
    return item


def opened_text(path: Path) -> IO[str]:
    """Open a text in UTF-8, gzipped where the name ends in ``.gz``; a byte order mark at its beginning is no part of it."""
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else open(path, encoding="utf-8-sig")


def numbered_lines(path: Path, what: str = "file") -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 1.

    Raises:
        ValueError: the file is missing, cut short, or no UTF-8 text; ``what`` says which kind of file it should be.
    """
    number = 0
    try:
        with opened_text(path) as file:
            for number, line in enumerate(file, start=1):
                if (line := line.lstrip(BYTE_ORDER_MARK)).strip():  # joined files have marks within, too
                    yield number, line
    except FileNotFoundError as error:
        raise ValueError(f"there is no {what} {path}; correct the path (now in {Path.cwd()})") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"the {what} {path} cannot be read after line {number}: {error}") from error
