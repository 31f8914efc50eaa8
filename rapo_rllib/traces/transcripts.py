"""Transcripts of a training run (``transcripts: true``) as step traces: what the policy itself did well, in any environment.

    a line of ``iteration_*.jsonl`` -> its steps, each with its observation -> StepTrace

Retrieved steps are left out: they are not the policy's. So is a step whose tool call failed, which is no example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.traces.rows import json_rows, reward_field, storable, text_field, truth_field
from rapo_rllib.types import StepTrace

SOURCE = "transcripts"


def read_transcripts(path: Path, dropped: Counter[str]) -> Iterator[StepTrace]:
    """Yield the step traces of a file, in its order; they get their ids when they are stored.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``.
        dropped: counts left-out trajectories and steps by reason.

    Raises:
        ValueError: the file or a line is wrong, naming file, line and field.
    """
    for where, row in json_rows(path):
        reason = _why_not(row, where)
        if reason:
            dropped[reason] += 1
            continue
        texts, given = _texts(row, where), _given(row, where)
        for index, text in enumerate(texts):
            if row["steps"][index].get("tool_error") or not text.strip():
                dropped["a step whose tool call failed, or that is empty"] += 1
                continue
            trace = StepTrace(
                id="",
                question=text_field(row, "question", where),
                history="".join([*given, *texts[:index]]),
                text=text,
                reward=reward_field(row, where, 1.0),
                question_id=text_field(row, "question_id", where, ""),
                step_index=len(given) + index,
                source=SOURCE,
            )
            yield storable(trace, where)


def _why_not(row: dict[str, Any], where: str) -> str:
    if row.get("end") in ("error", "length"):
        return "a trajectory that failed, or that a budget ended"
    if truth_field(row, "correct", where) is False:
        return "correct is false"
    if row.get("end") == "step":
        return "a single step"
    return "" if str(row.get("question", "")).strip() else "no question"


def _given(row: dict[str, Any], where: str) -> list[str]:
    """Read the given steps, behind which the trajectory began."""
    given = row.get("given")
    if not isinstance(given, list) or not all(isinstance(step, str) for step in given):
        raise ValueError(f"{where}: field 'given' must be a list of texts, got {str(given)[:80]}")
    return given


def _texts(row: dict[str, Any], where: str) -> list[str]:
    """Render each step in the text protocol, as in the histories of a rollout."""
    steps = row.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError(f"{where}: field 'steps' must be a list of objects, got {str(steps)[:80]}")
    texts = []
    for index, step in enumerate(steps):
        place = f"{where}, steps[{index}]"
        written = text_field(step, "text" if step.get("record") is None else "record", place)
        said = text_field(step, "observation", place, "")
        shown = render_observation(said, ProtocolSettings()) if said or index < len(steps) - 1 else ""
        texts.append(written + shown)
    return texts
