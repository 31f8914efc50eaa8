"""Make the numbers of the plots from results of trials: one row per iteration --> named series of equal length.

A number that a row lacks, or that is not finite, is None: the plot has no point there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.report.runs import Trial

_ROLLOUT, _RETRIEVAL = "env_runners/", "env_runners/retrieval/"
_LEARNER = "learners/default_policy/"
HELD_OUT = "evaluation/env_runners/accuracy"
REWARD, ACCURACY = _ROLLOUT + "episode_return_mean", _ROLLOUT + "accuracy"
GENERATED, POLICY_TOKENS = _ROLLOUT + "tokens/generated", _ROLLOUT + "tokens/policy"
_ALWAYS = (REWARD, ACCURACY, HELD_OUT)  # drawn even if they are zero throughout
_PHASES = {
    "rollout": ("timers/rollout",),
    "wait for rollout": ("timers/wait_for_rollout",),
    "update": ("timers/update",),
    "sync": ("timers/sync",),
    "buffer": ("timers/buffer",),
    "evaluation": ("timers/evaluation_iteration", "evaluation/env_runners/rollout_s"),
}
_TOTAL_S = "time_this_iter_s"


@dataclass(frozen=True)
class Panel:
    """One plot: its title, the note below it, and its series: label to key of the flattened results."""

    title: str
    series: dict[str, str]
    note: str = ""
    stacked: bool = False  # bars, of numbers that add up


_PANELS = (
    Panel("Reward", {"reward": REWARD}, "Mean outcome reward of the rollouts."),
    Panel(
        "Accuracy",
        {"training": ACCURACY, "held-out": HELD_OUT, "hybrid": _RETRIEVAL + "accuracy_hybrid"},
        "Training questions (all rollouts; hybrid: those with retrieval), and held-out ones (no retrieval).",
    ),
    Panel(
        "Entropy",
        {"all steps": _ROLLOUT + "entropy", "before": _RETRIEVAL + "entropy_before", "after": _RETRIEVAL + "entropy_after"},
        "Nats; mean of a step's tokens. Before and after: of the steps around a retrieval.",
    ),
    Panel(
        "Retrieval reward",
        {"retrieval reward": _RETRIEVAL + "retrieval_reward"},
        "Nats; positive where retrieved steps made the policy surer.",
    ),
    Panel(
        "Shares",
        {
            "hybrid trajectories": _RETRIEVAL + "hybrid_share",
            "retrieved share": _RETRIEVAL + "retrieved_share",
            "right format": _ROLLOUT + "format_rate",
            "similarity": _RETRIEVAL + "similarity",
        },
        "Retrieved share: retrieved tokens / response tokens of hybrid trajectories. Similarity: cosine of query and key.",
    ),
    Panel(
        "Tokens by author",
        {"policy": POLICY_TOKENS, "tool": _ROLLOUT + "tokens/observation", "retrieved": _ROLLOUT + "tokens/retrieved"},
        "Response tokens of an iteration.",
        stacked=True,
    ),
    Panel("Seconds", {name: f"seconds/{name}" for name in (*_PHASES, "rest")}, "Of an iteration, by phase.", stacked=True),
    Panel("Tokens per second", {"rollout": _ROLLOUT + "tokens_per_s", "update": _LEARNER + "tokens_per_s"}),
    Panel("Gradient norm", {"gradient norm": _LEARNER + "gradient_norm"}),
    Panel(
        "Engine against learner",
        {"mismatch": _LEARNER + "mismatch"},
        "Mean absolute difference of log probabilities, nats, before the first optimiser step.",
    ),
    Panel(
        "Policy ratio",
        {"mean": _LEARNER + "ratio", "clipped high": _LEARNER + "clipped_high", "clipped low": _LEARNER + "clipped_low"},
    ),
)
_FAMILIES = (  # plots whose series depend on environment and tools
    ("Reward terms", _ROLLOUT + "reward/", "Means; they add up to the reward.", False),
    ("How trajectories ended", _ROLLOUT + "ends/", "Trajectories of an iteration.", True),
)


def panels(trials: Sequence[Trial]) -> list[Panel]:
    """Choose the plots for which at least one trial has a number, without series that are zero throughout.

    Reward and accuracy stay: a reader must see that they are zero.
    """
    values = [(key, value) for trial in trials for row in map(plot_values, trial.rows) for key, value in row.items()]
    present = {key for key, value in values if value or (value is not None and key in _ALWAYS)}
    present |= {HELD_OUT for trial in trials if accuracy_before(trial) is not None}
    families = []
    for title, prefix, note, stacked in _FAMILIES:
        keys = sorted(key for key in present if key.startswith(prefix) and "/failures/" not in key)
        families.append(Panel(title, {key.removeprefix(prefix): key for key in keys}, note, stacked))
    kept = [
        Panel(panel.title, {label: key for label, key in panel.series.items() if key in present}, panel.note, panel.stacked)
        for panel in (*_PANELS, *families)
    ]
    return [panel for panel in kept if panel.series]


def plot_values(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Collect all numbers of one result by their key, with the seconds of each phase."""
    values = {key: number(value) for key, value in flattened(row).items() if isinstance(value, (int, float))}
    seconds = {name: next((values[key] for key in keys if key in values), None) for name, keys in _PHASES.items()}
    total = values.get(_TOTAL_S)
    if total is not None:
        seconds["rest"] = max(total - sum(value or 0.0 for value in seconds.values()), 0.0)
    return values | {f"seconds/{name}": value for name, value in seconds.items()}


def trial_curves(trial: Trial, shown: Sequence[Panel]) -> dict[str, Any]:
    """Build the data of one trial's plots: three horizontal axes, and the series of ``shown`` by key."""
    rows = [plot_values(row) for row in trial.rows]
    tokens = list(accumulate(generated_tokens(row) for row in rows))
    numbers = [row.get("training_iteration") or index + 1 for index, row in enumerate(rows)]
    seconds = [row.get("time_total_s") for row in rows]
    if (before := accuracy_before(trial)) is not None:
        rows, numbers, tokens, seconds = [{HELD_OUT: before}, *rows], [0, *numbers], [0.0, *tokens], [0.0, *seconds]
    keys = [key for panel in shown for key in panel.series.values()]
    return {
        "x": {"iteration": numbers, "generated tokens": tokens, "seconds": seconds},
        "series": {key: [_rounded(row.get(key)) for row in rows] for key in keys},
    }


def accuracy_before(trial: Trial) -> float | None:
    """Read the held-out accuracy of the initial policy from the totals of the first result; no other number has it."""
    totals = trial.rows[0].get("rapo") if trial.rows else None
    return number(totals.get("accuracy_before")) if isinstance(totals, Mapping) else None


def generated_tokens(row: Mapping[str, float | None]) -> float:
    """Return the number of tokens that the policy generated in an iteration; 0 if they were not counted."""
    return row.get(GENERATED) or row.get(POLICY_TOKENS) or 0.0


def number(value: Any) -> float | None:
    """Read a finite float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
