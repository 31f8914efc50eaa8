"""Trials side by side: the config keys in which they differ, and the outcome of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.report.curves import ACCURACY, HELD_OUT, REWARD, accuracy_before, generated_tokens, plot_values
from rapo_rllib.report.runs import Trial

_MISSING = object()


@dataclass(frozen=True)
class Comparison:
    """A table with one row per trial; ``labels`` are short, distinct names of the trials."""

    labels: list[str]
    columns: list[str]
    rows: list[list[str]]


def compared(trials: Sequence[Trial]) -> Comparison:
    """Build the table of all trials; with a single trial it has no config columns."""
    keys = differing_keys(trials)
    outcomes = [_outcome(trial) for trial in trials]
    columns = [*keys, *dict.fromkeys(name for outcome in outcomes for name in outcome)]
    rows = [
        [
            *(_setting(flattened(trial.params).get(key, _MISSING)) for key in keys),
            *(outcome.get(c, "") for c in columns[len(keys) :]),
        ]
        for trial, outcome in zip(trials, outcomes, strict=True)
    ]
    return Comparison(_labels(trials, keys), columns, rows)


def differing_keys(trials: Sequence[Trial]) -> list[str]:
    """List keys of ``params.json``, nested ones as ``a/b``, whose values are not the same in all trials."""
    settings = [flattened(trial.params) for trial in trials]
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if len({_setting(values.get(key, _MISSING)) for values in settings}) > 1]


def _labels(trials: Sequence[Trial], keys: Sequence[str]) -> list[str]:
    labels = []
    for index, trial in enumerate(trials):
        settings = flattened(trial.params)
        parts = [f"{key.rsplit('/', 1)[-1]}={_setting(settings.get(key, _MISSING))}" for key in keys]
        labels.append(", ".join(parts) or (trial.name if len(trials) == 1 else f"trial {index + 1}"))
    short = [label if len(label) <= 48 else f"{label[:47]}…" for label in labels]
    return [f"{label} #{i + 1}" if short.count(label) > 1 else label for i, label in enumerate(short)]


def _setting(value: Any) -> str:
    if value is _MISSING:
        return "(default)"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _outcome(trial: Trial) -> dict[str, str]:
    rows = [plot_values(row) for row in trial.rows]
    before = accuracy_before(trial)
    return {
        "state": trial.state,
        "iterations": f"{int((rows[-1].get('training_iteration') or len(rows)) if rows else 0):,}",
        "held-out accuracy, before": "" if before is None else f"{before:.3f}",
        **_last_and_best(rows, "held-out accuracy", HELD_OUT),
        **_last_and_best(rows, "training accuracy", ACCURACY),
        **_last_and_best(rows, "reward", REWARD),
        "generated tokens": f"{sum(map(generated_tokens, rows)):,.0f}",
        "seconds": f"{(rows[-1].get('time_total_s') or 0.0) if rows else 0.0:,.0f}",
    }


def _last_and_best(rows: Sequence[dict[str, float | None]], title: str, key: str) -> dict[str, str]:
    values = [value for row in rows if (value := row.get(key)) is not None]
    last, best = (f"{values[-1]:.3f}", f"{max(values):.3f}") if values else ("", "")
    return {f"{title}, last": last, f"{title}, best": best}
