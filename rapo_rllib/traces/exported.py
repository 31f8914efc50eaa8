"""Write and read files of ``rllib buffer export``: every field of every step trace, so that nothing is lost.

    line 1   {"step_trace_buffer": 1, "count": N}
    others   one step trace each: its fields by name

The first line may be missing in files that were put together by hand; then nothing says whether the file is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rapo_rllib.traces.rows import json_rows, reward_field, storable, text_field, whole_number_field
from rapo_rllib.types import StepTrace

MARK, VERSION = "step_trace_buffer", 1


def header_row(count: int) -> dict[str, int]:
    """Return the JSON object of the first line, for a file of ``count`` step traces."""
    return {MARK: VERSION, "count": count}


def read_exported(path: Path, dropped: Counter[str]) -> Iterator[StepTrace]:
    """Yield the step traces of a file, in its order.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``.
        dropped: counts left-out lines by reason; an export has none.

    Raises:
        ValueError: the file or a line is wrong, or traces are missing at its end; names file, line and field.
    """
    count, promised = 0, 0
    for where, row in json_rows(path):
        if MARK in row:
            if row[MARK] != VERSION:
                raise ValueError(f"{where}: field {MARK!r} is {row[MARK]!r}; this version of the package reads {VERSION}")
            promised += whole_number_field(row, "count", where, 0)
            continue
        trace = trace_of_row(row, where)
        if not trace.text:
            dropped["empty text"] += 1
            continue
        count += 1
        yield storable(trace, where)
    if promised > count + dropped["empty text"]:
        raise ValueError(f"{path}: the file ends after {count:,} of {promised:,} step traces; export it again")


def trace_of_row(row: dict[str, Any], where: str) -> StepTrace:
    """Read the step trace of a line."""
    return StepTrace(
        id=text_field(row, "id", where, ""),
        question=text_field(row, "question", where),
        history=text_field(row, "history", where),
        text=text_field(row, "text", where),
        reward=reward_field(row, where, 1.0),
        question_id=text_field(row, "question_id", where, ""),
        step_index=whole_number_field(row, "step_index", where, 0),
        source=text_field(row, "source", where, ""),
        weight_version=whole_number_field(row, "weight_version", where, -1),
    )
