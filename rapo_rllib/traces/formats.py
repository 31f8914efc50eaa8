"""Find the format of a file, and its reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from rapo_rllib.traces.chat import read_chat
from rapo_rllib.traces.exported import MARK, read_exported
from rapo_rllib.traces.recorded import read_trace_file
from rapo_rllib.traces.released import read_released
from rapo_rllib.traces.rows import json_rows
from rapo_rllib.traces.transcripts import read_transcripts
from rapo_rllib.types import ExpertTrajectory, StepTrace

AUTO = "auto"
Reader = Callable[[Path, Counter[str]], Iterator[ExpertTrajectory] | Iterator[StepTrace]]
READERS: dict[str, Reader] = {
    "traces": read_trace_file,
    "released": read_released,
    "chat": read_chat,
    "traces-steps": read_exported,
    "transcripts": read_transcripts,
}
_SIGNS = {  # sets of fields, one of which each row of a format has; the first format that fits is taken
    "transcripts": ({"steps", "kinds"},),
    "traces": ({"segments"}, {"steps", "question"}),
    "released": ({"key", "value"},),
    "chat": ({"messages"},),
    "traces-steps": ({"history", "text"}, {MARK}),
}


def detect(path: Path) -> str:
    """Find the format of a file, by the fields of its first line.

    Raises:
        ValueError: the file cannot be read or is empty, or its first line has the fields of no known format.
    """
    where, row = next(json_rows(path), (None, {}))
    if where is None:
        raise ValueError(f"{path} is empty: there is nothing to import")
    for name, signs in _SIGNS.items():
        if any(sign <= set(row) for sign in signs):
            return name
    known = "; ".join(f"{name}: {' and '.join(sorted(signs[0]))}" for name, signs in _SIGNS.items())
    raise ValueError(
        f"{where}: fields {sorted(row)} belong to no known format ({known}). Name the format if it is one of them."
    )


def read(path: Path, format: str, dropped: Counter[str]) -> Iterator[ExpertTrajectory] | Iterator[StepTrace]:
    """Read a file of whole trajectories (``traces``, ``chat``) or of single steps (all other formats).

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``.
        format: one of ``READERS``, or ``auto``.
        dropped: counts left-out rows by reason.

    Raises:
        ValueError: ``format`` is unknown, or the file is wrong: naming file, line and field.
    """
    if format != AUTO and format not in READERS:
        raise ValueError(f"format must be one of {(AUTO, *READERS)}, got {format!r}")
    return READERS[detect(path) if format == AUTO else format](path, dropped)
