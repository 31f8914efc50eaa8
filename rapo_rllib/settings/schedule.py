"""Numbers that may change in the course of a training: one number, or points over env steps."""

from __future__ import annotations

import itertools
from typing import Any

from rapo_rllib.settings.knobs import shown
from rapo_rllib.validation import MOST


def check_schedule(name: str, value: Any, high: float = MOST, low: float = 0) -> None:
    """Raise ``ValueError`` unless ``value`` is a number from ``low`` to ``high``, or a schedule of such numbers over env steps.

    Example: ``[[0, 1e-5], [1000, 0.0]]`` falls from 1e-5 to 0 in the first 1,000 env steps.
    """
    points = value if isinstance(value, (list, tuple)) else [[0, value]]
    for point in points:
        if not isinstance(point, (list, tuple)) or len(point) != 2:
            raise ValueError(f"{name} = {shown(value)}: must be a number or a schedule [[env steps, number], ...]")
        _check_number(f"env steps of {name}", point[0], 1e15)
        _check_number(name, point[1], high, low)
    if not points or points[0][0] != 0 or any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
        raise ValueError(f"{name} = {shown(value)}: a schedule starts at env step 0 and its steps increase")


def check_share(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is between 0 and 1, or a schedule of such numbers over env steps."""
    check_schedule(name, value, 1)


def value_at(value: Any, env_steps: int | None) -> float:
    """Compute the number in force after ``env_steps``: interpolated between two points, after the last point its number.

    Args:
        value: a number or a schedule.
        env_steps: generated steps that were sampled so far; None: they are not counted, and the last point is in force.
    """
    if not isinstance(value, (list, tuple)):
        return float(value)
    if env_steps is not None:
        for (start, first), (stop, last) in itertools.pairwise(value):
            if env_steps < stop:
                return float(first + (last - first) * (env_steps - start) / (stop - start))
    return float(value[-1][1])


def _check_number(name: str, value: Any, high: float, low: float = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        rule = "a number" if low < 0 else "at least 0" if high > 1 else f"between 0 and {high}"
        rule += f", and at most {high:g}" if high > 1 and isinstance(value, int | float) and value > high else ""
        raise ValueError(f"{name} = {value!r}: must be {rule}")
