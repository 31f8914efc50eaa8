r"""Files of recorded trajectories, rendered into the text protocol. Flow: file -> here -> ``buffer/build.py``, ``envs/``.

One JSON object a line, plain or gzipped, with ``id``, ``source``, ``question``, ``gold``, ``correct`` and ``segments``: a list
of ``{"type": "think" | "call" | "result" | "answer", "text": ..., "tool": ...}``. A row may have ``steps`` in place of
``segments``: texts that are in the text protocol already; then ``gold`` may be missing. Optional: ``reward``, ``calc_ok``
(every recorded calculation is right) and ``in_arpo_eval`` (the evaluation set that asks the same question).

    think  -> <think>TEXT</think>           result -> \n<result>\nTEXT\n</result>\n
    call   -> <TOOL>TEXT</TOOL>             answer -> <answer>\boxed{TEXT}</answer>
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rapo_rllib.traces.pairing import Segment, paired
from rapo_rllib.traces.rows import json_rows, reward_field, storable, text_field, truth_field
from rapo_rllib.types import ExpertTrajectory, Question

logger = logging.getLogger(__name__)

SEGMENT_TYPES = ("think", "call", "result", "answer")
TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_trace_file(path: str | Path, dropped: Counter[str] | None = None) -> Iterator[ExpertTrajectory]:
    """Yield the usable trajectories of a ``.jsonl`` or ``.jsonl.gz`` file, in its order.

    Left out: rows with ``correct`` false, with ``calc_ok`` false, of an evaluation set (``in_arpo_eval``), and without any
    step; calls without a result, and results without a call. The reward is the row's ``reward``, else 1.0.

    Args:
        path: of the file.
        dropped: counts what is left out, by reason; None: a warning at the end tells the counts.

    Raises:
        ValueError: the file is missing or unreadable, or a line is wrong: naming file, line and field. Raised while iterating.
    """
    counts: Counter[str] = Counter() if dropped is None else dropped
    for where, row in json_rows(Path(path)):
        reason = _why_not(row, where)
        expert = None if reason else _trajectory(row, where, counts)
        if expert and expert.steps:
            yield storable(expert, where)
        else:
            counts[reason or "no step"] += 1
    if dropped is None and counts:
        logger.warning("%s: left out: %s", path, ", ".join(f"{count:,} ({reason})" for reason, count in counts.items()))


def _why_not(row: dict[str, Any], where: str) -> str:
    """Find the reason to leave a row out; empty: there is none."""
    if truth_field(row, "correct", where) is False:
        return "correct is false"
    if truth_field(row, "calc_ok", where) is False:
        return "calc_ok is false: a recorded calculation is wrong"
    return "question of an evaluation set (in_arpo_eval)" if row.get("in_arpo_eval") else ""


def rendered_steps(segments: Sequence[Segment], dropped: Counter[str] | None = None) -> tuple[str, ...]:
    r"""Render segments as steps: each result ends a step, and the answer ends the last one.

    Calls without a result and results without a call (:mod:`pairing`) are left out, and counted in ``dropped``.

    Example: think "3 + 5", call python "print(3 + 5)", result "8", answer "8" are two steps,
    ``<think>3 + 5</think><python>print(3 + 5)</python>\n<result>\n8\n</result>\n`` and ``<answer>\boxed{8}</answer>``.
    """
    steps: list[str] = []
    parts: list[str] = []
    counts = Counter[str]() if dropped is None else dropped
    for segment in paired(segments, counts):
        parts.append(_rendered(segment["type"], segment["text"], segment.get("tool")))
        if segment["type"] in ("result", "said"):
            if len(parts) > 1:
                steps.append("".join(parts))
            elif steps:
                steps[-1] += parts[0]  # nothing was done since the last step: it belongs to that step
            else:
                counts["what was said before any step"] += 1
            parts = []
    return (*steps, "".join(parts)) if parts else tuple(steps)


def _rendered(kind: str, text: str, tool: str | None) -> str:
    if kind == "think":
        return f"<think>{text}</think>"
    if kind == "call":
        return f"<{tool}>{text}</{tool}>"
    if kind in ("result", "said"):
        return f"\n<result>\n{text}\n</result>\n"
    if kind == "raw":  # has its tags already; no trace file may say so
        return text
    return f"<answer>\\boxed{{{text.strip()}}}</answer>"


def _trajectory(row: dict[str, Any], where: str, dropped: Counter[str]) -> ExpertTrajectory:
    text = text_field(row, "question", where)
    if not text.strip():
        raise ValueError(f"{where}: field 'question' is empty")
    written = row.get("steps")
    steps = _rendered_segments(row, where, dropped) if written is None else _written_steps(written, where)
    accepted = [""] if written is not None and row.get("gold") is None else _golds(row, where)  # a game has no answer
    question = Question(
        id=text_field(row, "id", where),
        text=text,
        answer=accepted[0],
        aliases=tuple(accepted[1:]),
        source=text_field(row, "source", where, ""),
    )
    return ExpertTrajectory(question, steps, reward_field(row, where, 1.0), question.source)


def _written_steps(steps: Any, where: str) -> tuple[str, ...]:
    if not isinstance(steps, list) or not all(isinstance(step, str) and step for step in steps):
        raise ValueError(f"{where}: field 'steps' must be a list of texts, none of them empty, got {str(steps)[:80]}")
    return tuple(steps)


def _rendered_segments(row: dict[str, Any], where: str, dropped: Counter[str]) -> tuple[str, ...]:
    _check_segments(row.get("segments"), where)
    return rendered_steps(row["segments"], dropped)


def _check_segments(segments: Any, where: str) -> None:
    if not isinstance(segments, list):
        got = type(segments).__name__
        raise ValueError(
            f"{where}: field 'segments' must be a list, got {got}; or 'steps' a list of texts in the text protocol"
        )
    for index, segment in enumerate(segments):
        place = f"{where}: field 'segments[{index}]"
        if not isinstance(segment, dict) or segment.get("type") not in SEGMENT_TYPES:
            raise ValueError(f"{place}.type' must be one of {SEGMENT_TYPES}, got {str(segment)[:80]}")
        if not isinstance(segment.get("text"), str):
            raise ValueError(f"{place}.text' must be a text, got {segment.get('text')!r}")
        tool = segment.get("tool")
        if segment["type"] == "call" and not (isinstance(tool, str) and TOOL_NAME.fullmatch(tool)):
            raise ValueError(f"{place}.tool' must be a tool's name (letters, digits, underscores), got {tool!r}")


def _golds(row: dict[str, Any], where: str) -> list[str]:
    """Read the accepted answers: ``gold`` is a text, a number, or a list of them, which may hold lists."""
    found: list[str] = []
    pending = [row.get("gold")]
    while pending:
        value = pending.pop(0)
        if isinstance(value, list):
            pending = value + pending
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            found.append(str(value))
        else:
            raise ValueError(f"{where}: field 'gold' must be a text or a list of texts, got {row.get('gold')!r}")
    if not found:
        raise ValueError(f"{where}: field 'gold' is empty")
    return found
