"""Ratios of the two sides over seeds: TRL's figure over ours, so that above 1 is better. Pure functions.

A curve is ``[(seconds of training, held-out accuracy), ...]``, from (0, accuracy of the model as it is).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from learning_parts.statistics import mean_interval

Curve = Sequence[tuple[float, float]]
Raw = Mapping[str, Any]


def seconds_until(curve: Curve, accuracy: float) -> float | None:
    """Seconds until the straight lines between a curve's points first reach ``accuracy``; None: they never do.

    ``s = s₀ + (s₁ - s₀) · (accuracy - a₀) / (a₁ - a₀)`` between the last point below and the first that is not.

    Raises:
        ValueError: the model has that accuracy before training.
    """
    if curve[0][1] >= accuracy:
        raise ValueError(f"--accuracy {accuracy}: the model has {curve[0][1]} before training; give a higher one")
    for (before, low), (after, high) in pairwise(curve):
        if high >= accuracy:
            return before + (after - before) * (accuracy - low) / (high - low)
    return None


def ratio_over_seeds(theirs: Mapping[int, float], ours: Mapping[int, float]) -> dict[str, Any]:
    """Geometric mean of theirs / ours over the seeds that both have; 95 % interval: ``exp(mean ± t · s / √n)`` of the logs.

    With one seed there is no interval: ``low`` and ``high`` are None.
    """
    ratios = {seed: theirs[seed] / ours[seed] for seed in sorted(theirs.keys() & ours.keys())}
    mean, low, high = map(math.exp, mean_interval([math.log(ratio) for ratio in ratios.values()]))
    several = len(ratios) > 1
    return {"mean": mean, "low": low if several else None, "high": high if several else None, "by_seed": ratios}


def time_ratio(theirs: Mapping[int, Curve], ours: Mapping[int, Curve], accuracy: float) -> dict[str, Any]:
    """:func:`ratio_over_seeds` of the seconds until ``accuracy``.

    A side that does not reach it counts with all its seconds, and its seed is in ``censored``: where theirs does not, the ratio
    is at least what is said, where ours does not, at most. A seed in which neither does has no ratio.
    """
    until = {
        name: {seed: seconds_until(curve, accuracy) for seed, curve in side.items()}
        for name, side in (("theirs", theirs), ("ours", ours))
    }
    censored = {name: sorted(seed for seed, seconds in side.items() if seconds is None) for name, side in until.items()}
    usable = {seed for side in until.values() for seed, seconds in side.items() if seconds is not None}
    seconds = {
        name: {seed: side[seed][-1][0] if (found := until[name][seed]) is None else found for seed in side.keys() & usable}
        for name, side in (("theirs", theirs), ("ours", ours))
    }
    both = seconds["theirs"].keys() & seconds["ours"].keys()
    ratio = ratio_over_seeds(seconds["theirs"], seconds["ours"]) if both else {"mean": None}
    return {**ratio, "accuracy": accuracy, "censored": censored}


def figures(raw: Raw) -> dict[str, float]:
    """The figures of a run; of its iterations the first is left out where there are others (it loads and compiles)."""
    rows = raw["iterations"][1:] or raw["iterations"]

    def sum_of(name: str) -> float:
        return float(sum(row[name] for row in rows))

    return {
        "seconds_an_iteration": float(statistics.median(row["seconds"] for row in rows)),
        "rollout_tokens_per_s": sum_of("tokens") / sum_of("rollout_s"),
        "update_tokens_per_s": sum_of("trained") / sum_of("update_s"),
        "trained_share": sum_of("trained") / sum_of("tokens"),
        "tokens_an_iteration": sum_of("tokens") / len(rows),
        "peak_memory_gb": raw["peak_memory_gb"],
        "training_s": raw["training_s"],
        "accuracy_before": raw["held_out"][0][1],
        "accuracy_after": raw["held_out"][-1][1],
    }


def compare(runs: Mapping[str, Mapping[int, Raw]], accuracy: float) -> dict[str, Any]:
    """The fields of the report, of raw results by side and seed; sides other than ``ours`` are compared with it."""
    found: dict[str, Any] = {
        side: {seed: figures(raw) for seed, raw in by_seed.items() if "skipped" not in raw} for side, by_seed in runs.items()
    }
    skipped = {
        side: {seed: raw["skipped"] for seed, raw in by_seed.items() if "skipped" in raw} for side, by_seed in runs.items()
    }
    curves = {side: {seed: runs[side][seed]["held_out"] for seed in by_seed} for side, by_seed in found.items()}
    report: dict[str, Any] = {"skipped": {side: errors for side, errors in skipped.items() if errors}, "figures": found}
    for side in found.keys() - {"ours"}:
        if not found[side].keys() & found.get("ours", {}).keys():
            continue
        ratios = {
            name: ratio_over_seeds(*({seed: row[field] for seed, row in found[one].items()} for one in (side, "ours")))
            for name, field in (("seconds_ratio", "seconds_an_iteration"), ("memory_ratio", "peak_memory_gb"))
        }
        ratios["time_to_accuracy_ratio"] = time_ratio(curves[side], curves["ours"], accuracy)
        report |= ratios if side == "trl" else {f"{side}_{name}": ratio for name, ratio in ratios.items()}
    return report
