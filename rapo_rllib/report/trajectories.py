"""Make the groups that the trajectory reader shows from transcripts; members have parts by writer, rewards and advantages.

iteration_*.jsonl --selected--> the newest that fit --shown_group--> {"question", "members": [{"parts", ...}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

from rapo_rllib.report.curves import number
from rapo_rllib.report.runs import JsonLines, Trial

POLICY, TOOL, RETRIEVED, GIVEN = "policy", "tool", "retrieved", "given"
_MAX_BARS = 120  # of the strip that shows the entropies of one step's tokens


@dataclass
class Selection:
    """The groups of one trial that the page holds, the newest last, as JSON texts."""

    groups: list[str] = field(default_factory=list)
    left_out: bool = False  # older ones did not fit
    unreadable_lines: int = 0


def selected(trial: Trial, max_bytes: int) -> Selection:
    """Select the newest iterations that fit into ``max_bytes``; of the oldest one, perhaps only the first questions fit."""
    found, left = Selection(), max_bytes
    for iteration in sorted(trial.iterations, reverse=True):
        lines = JsonLines(trial.iterations[iteration])
        groups = [script_json(shown_group(rows, iteration)) for rows in grouped(lines)]
        found.unreadable_lines += lines.unreadable
        totals = list(accumulate(len(group.encode("utf-8", "backslashreplace")) for group in groups))
        fitting = sum(total <= left for total in totals)
        found.groups[:0] = groups[:fitting]
        found.left_out = fitting < len(groups)
        if found.left_out:
            break
        left -= totals[-1] if totals else 0
    return found


def script_json(value: Any) -> str:
    r"""Write JSON for a ``<script>`` element: no ``<``, so that neither ``</script>`` nor ``<!--`` ends or hides it.

    Raises:
        ValueError: a number is not finite; JSON has none such.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def grouped(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Split the rows of one file into groups, whose rows follow each other."""
    return [list(group) for _, group in groupby(rows, key=lambda row: row.get("group"))]


def shown_group(rows: Sequence[Mapping[str, Any]], iteration: int) -> dict[str, Any]:
    """Convert the rows of one group to the page's data."""
    first = rows[0]
    return {
        "iteration": iteration,
        "id": str(first.get("question_id", "")),
        "question": str(first.get("question", "")),
        "gold": str(first.get("gold", "")),
        "members": [_member(row) for row in rows],
    }


def _member(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "reward": number(row.get("reward")),
        "advantage": number(row.get("advantage")),
        "terms": {str(name): number(value) for name, value in (row.get("reward_terms") or {}).items()},
        "z": number(row.get("retrieval_reward")),
        "correct": bool(row.get("correct")),
        "hybrid": bool(row.get("hybrid")),
        "end": str(row.get("end", "")),
        "error": str(row.get("error", "")),
        "share": number(row.get("retrieved_share")),
        "tokens": len(row.get("token_ids", ())),
        "parts": text_parts(row),
    }


def text_parts(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split the response by writer; the texts of all parts add up to the response.

    The tool's result and the retrieved trace follow the text that a step generated.
    """
    text, steps = str(row.get("text", "")), row.get("steps") or []
    retrievals = {retrieval.get("after_step"): retrieval for retrieval in row.get("retrievals") or []}
    parts: list[dict[str, Any]] = []
    starts = [int(step.get("text_start", 0)) for step in steps]
    end = starts[0] if row.get("given") and starts else 0
    parts += [{"by": GIVEN, "text": text[:end]}]
    for index, (step, start) in enumerate(zip(steps, starts, strict=True)):
        parts += _between(text, end, start, retrievals.get(index - 1))
        end = start + len(str(step.get("text", "")))
        if step.get("stop") == len(row.get("token_ids") or ()):  # nothing follows: all text up to the end is the step's
            end = len(text)
        parts.append(_policy_part(text[start:end], step, row.get("entropies") or ()))
    parts += _between(text, end, len(text), retrievals.get(len(steps) - 1))
    return [part for part in parts if part["text"]]


def _policy_part(text: str, step: Mapping[str, Any], entropies: Sequence[float]) -> dict[str, Any]:
    tokens = entropies[int(step.get("start", 0)) : int(step.get("stop", 0))]
    return {
        "by": POLICY,
        "text": text,
        "entropy": number(step.get("entropy")),
        "entropies": _binned(tokens),
        "tokens": int(step.get("stop", 0)) - int(step.get("start", 0)),
        "tool": step.get("tool"),
        "tool_error": step.get("tool_error"),
        "tool_seconds": number(step.get("tool_seconds")),
    }


def _between(text: str, start: int, stop: int, retrieval: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Split ``text[start:stop]``, which follows a step, into a tool's result and a retrieved trace, if there is one."""
    if retrieval is None:
        return [{"by": TOOL, "text": text[start:stop]}]
    middle = min(max(int(retrieval.get("text_start", start)), start), stop)
    about = {"source": str(retrieval.get("source", "")), "similarity": number(retrieval.get("similarity"))}
    traced = {"by": RETRIEVED, "text": text[middle:stop], **about, "noisy": bool(retrieval.get("noisy"))}
    return [{"by": TOOL, "text": text[start:middle]}, traced]


def _binned(values: Sequence[float]) -> list[float]:
    """Compute the means of at most ``_MAX_BARS`` stretches of equal length."""
    size = max(-(-len(values) // _MAX_BARS), 1)
    stretches = [values[start : start + size] for start in range(0, len(values), size)]
    return [round(sum(number(value) or 0.0 for value in stretch) / len(stretch), 3) for stretch in stretches]
