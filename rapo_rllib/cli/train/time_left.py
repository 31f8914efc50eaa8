"""When a trial will end, as far as its stop criteria and the pace of its last results can tell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rapo_rllib.cli.train.interrupt import result_value

# Results that only ever grow, at a pace; when a reward or an accuracy will be reached nobody can know.
_COUNTER = re.compile(r"(.*/)?(training_iteration|iterations_since_restore|time_\w+_s|time_since_restore|\w+_(lifetime|total))")


@dataclass(frozen=True)
class TimeLeft:
    """Seconds after the last result; ``at_most`` where a criterion that cannot be foreseen may end the trial before."""

    seconds: float
    at_most: bool = False


def time_left(results: Sequence[Mapping[str, Any]], stop: Mapping[str, float]) -> TimeLeft | None:
    """The nearest end that can be foreseen.

    Args:
        results: the last ones of a trial, oldest first.
        stop: stop criteria, nested results as ``a/b``.

    Returns:
        None where there is no result yet, or no criterion that can be foreseen.
    """
    if not results:
        return None
    known = [left for key, limit in stop.items() if (left := _until(results, key, limit)) is not None]
    budget = _budget_left(results[-1])
    unforeseen = len(known) < len(stop)
    if budget is not None:
        known.append(budget)
    return TimeLeft(max(min(known), 0.0), unforeseen) if known else None


def _until(results: Sequence[Mapping[str, Any]], key: str, limit: float) -> float | None:
    """Seconds until a counter reaches its limit."""
    if not _COUNTER.fullmatch(key):
        return None
    value, pace = result_value(results[-1], key), _pace(results, key)
    return None if value is None or not pace else (limit - value) / pace


def _pace(results: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Gain of a counter in a second, over the results but the first, whose beginning nobody saw."""
    first, last = results[0], results[-1]
    if len(results) == 1:
        seconds = result_value(last, "time_this_iter_s")
        gained: float | None = {"training_iteration": 1.0}.get(key, seconds if key.startswith("time_") else None)
    else:
        values = result_value(first, key), result_value(last, key)
        times = result_value(first, "time_total_s"), result_value(last, "time_total_s")
        gained = None if None in values else values[1] - values[0]  # type: ignore[operator]
        seconds = None if None in times else times[1] - times[0]  # type: ignore[operator]
    return gained / seconds if gained and seconds else None


def _budget_left(result: Mapping[str, Any]) -> float | None:
    """Of RAPO's own ``time_budget_s``, which counts from the trial's start."""
    budget, spent = result_value(result, "config/time_budget_s"), result_value(result, "rapo/seconds")
    return None if budget is None or spent is None else budget - spent
