"""Select the transcripts of the page: whole iterations, the newest first, up to a size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rapo_rllib.report.runs import JsonLines, Trial
from rapo_rllib.report.trajectories import grouped, objective_of, shown_group


@dataclass
class Selection:
    """The groups of one trial that the page holds, by iteration, as JSON texts."""

    groups: list[str] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)  # whole, or cut
    cut: int | None = None  # iteration of which only the first groups fit
    available: int = 0  # iterations that have transcripts
    unreadable_lines: int = 0


def selected(trial: Trial, max_bytes: int) -> Selection:
    """Select transcripts that fit into ``max_bytes``: at least a part of the newest iteration, if one group fits."""
    found = Selection(available=len(trial.iterations))
    held: dict[int, list[str]] = {}
    left = max_bytes
    for number in sorted(trial.iterations, reverse=True):
        lines, objective = JsonLines(trial.iterations[number]), objective_of(trial.objective_keys(number))
        groups = [script_json(shown_group(rows, number, objective)) for rows in grouped(lines)]
        found.unreadable_lines += lines.unreadable
        fitting = _fitting(groups, left)
        if len(fitting) < len(groups):
            if not held and fitting:
                held[number], found.cut = fitting, number
            break
        left -= sum(map(_size, groups))
        held[number] = groups
    found.iterations = sorted(number for number, groups in held.items() if groups)
    found.groups = [group for number in found.iterations for group in held[number]]
    return found


def _fitting(groups: Sequence[str], room: int) -> list[str]:
    fitting = []
    for group in groups:
        room -= _size(group)
        if room < 0:
            break
        fitting.append(group)
    return fitting


def _size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))


def script_json(value: Any) -> str:
    r"""JSON that may stand in a ``<script>`` element: no ``<``, so that neither ``</script>`` nor ``<!--`` ends or hides it.

    Raises:
        ValueError: a number is not finite; JSON has none such.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
