"""JSON rows of a file, and their fields, for readers that name file, line and field where something is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rapo_rllib.text_lines import numbered_lines


def json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a ``.jsonl`` or ``.jsonl.gz`` file, each after ``FILE, line N``.

    Raises:
        ValueError: the file is missing or unreadable, or a line is no JSON object.
    """
    for number, line in numbered_lines(path.expanduser(), "trace file"):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: no JSON ({error.msg} at character {error.pos})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
        yield where, row


def text_field(row: dict[str, Any], field: str, where: str, default: str | None = None) -> str:
    """A text. Raises ``ValueError`` for anything else."""
    value = row.get(field, default)
    if not isinstance(value, str):
        raise ValueError(f"{where}: field {field!r} must be a text, got {str(value)[:80]!r}")
    return value


def reward_field(row: dict[str, Any], where: str, default: float, field: str = "reward") -> float:
    """A finite number; ``default`` where the field is missing or null. Raises ``ValueError`` for anything else."""
    value = row.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{where}: field {field!r} must be a finite number, got {value!r}")
    return float(value)


def whole_number_field(row: dict[str, Any], field: str, where: str, default: int) -> int:
    """A whole number. Raises ``ValueError`` for anything else."""
    value = row.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{where}: field {field!r} must be a whole number, got {value!r}")
    return value
