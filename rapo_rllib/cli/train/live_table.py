"""Draw a live display of what is known of the trials: a table, the warnings that hold, and a last line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rapo_rllib.cli.build_display import duration
from rapo_rllib.cli.train.time_left import TimeLeft
from rapo_rllib.cli.train.trial_state import TrialState
from rapo_rllib.monitoring.warnings import TrainingWarning

_ORDER = ("RUNNING", "ERROR", "PAUSED", "TERMINATED", "PENDING")  # which trials come first where not all fit
_STYLES = {"RUNNING": "bold", "ERROR": "red", "PAUSED": "dim", "TERMINATED": "green", "PENDING": "dim"}
_WARNINGS = 6  # lines

Warned = Sequence[tuple[TrialState, TrainingWarning]]


def live_table(title: str, states: Sequence[TrialState], warned: Warned, note: str = "", max_rows: int = 12) -> RenderableType:
    """The whole display.

    Args:
        title: of the experiment.
        states: of all trials.
        warned: what holds now, and of whom.
        note: the last line; empty: none.
        max_rows: trials shown; the others are counted.
    """
    shown = sorted(states, key=lambda state: _ORDER.index(state.status) if state.status in _ORDER else len(_ORDER))
    shown, rest = shown[:max_rows], shown[max_rows:]
    parts: list[RenderableType] = [_table(title, shown, alone=len(states) == 1)]
    if rest:
        counts = Counter(state.phase for state in rest)
        parts.append(Text("and " + ", ".join(f"{count} {phase}" for phase, count in counts.items()), style="dim"))
    for state, warning in warned[:_WARNINGS]:
        whose = "" if len(states) == 1 else f"{state.label}: "
        parts.append(Text.assemble(("! ", "bold yellow"), (f"{whose}{warning.text}", "yellow"), f"\n  {warning.advice}"))
    if len(warned) > _WARNINGS:
        parts.append(Text(f"! and {len(warned) - _WARNINGS} more warnings", style="yellow"))
    if note:
        parts.append(Text(note, style="bold yellow"))
    return Group(*parts)


def _table(title: str, states: Sequence[TrialState], alone: bool) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    # Columns that may wrap are the first that a narrow terminal shortens; their cells do not wrap, and numbers stay whole.
    for name in ("phase",) if alone else ("trial", "phase"):
        table.add_column(name, min_width=8)
    for name in ("iteration", "time", "left", "speed", "reward", "held-out"):
        table.add_column(name, justify="right", no_wrap=True)
    for state in states:
        cells: list[RenderableType] = [
            Text(state.phase, style=_STYLES.get(state.status, ""), no_wrap=True, overflow="ellipsis"),
            state.iteration,
            "-" if state.seconds is None else clock(state.seconds),
            _left(state.left),
            state.speed or "-",
            _number(state.reward),
            _number(state.accuracy),
        ]
        label = Text(state.label, no_wrap=True, overflow="ellipsis")
        table.add_row(*(cells if alone else [label, *cells]))
    return table


def clock(seconds: float) -> str:
    """``4:07``, or ``1:04:07`` from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _left(left: TimeLeft | None) -> str:
    if left is None:
        return "-"
    return f"{'< ' if left.at_most else ''}{duration(max(left.seconds, 1.0))}"


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"
