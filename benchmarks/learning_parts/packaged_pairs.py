"""The packaged jobs against each other, by seed: raw results ``packaged-<job>-seed-<seed>.json`` --> figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learning_parts.statistics import mean_interval, paired_difference

OURS, BASELINE = "rapo_math", "grpo_math"
PLANNED = range(12, 36)  # seeds of pairs side by side
Raw = Mapping[str, Any]


def packaged(results: Path) -> dict[str, Any]:
    """Held-out accuracy at the end, ours minus GRPO's, and the ratio of seconds; the least that any seed of ours ends with.

    Args:
        results: folder of the raw results.
    """
    ours, theirs = _by_seed(results, OURS), _by_seed(results, BASELINE)
    if not ours:
        return {}
    ends = {seed: _end(raw) for seed, raw in ours.items()}
    found: dict[str, Any] = {"lowest": min(ends.values()), "n": len(ends), "mean": sum(ends.values()) / len(ends)}
    found["curves"] = {job: _curves(runs) for job, runs in ((OURS, ours), (BASELINE, theirs))}
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < 2:
        return found
    ratios = [ours[seed]["seconds"] / theirs[seed]["seconds"] for seed in both]
    mean, low, high = mean_interval(ratios)
    found["rapo_minus_grpo"] = paired_difference(ends, {seed: _end(raw) for seed, raw in theirs.items()})
    found["seconds_ratio"] = {"mean": mean, "low": low, "high": high, "n": len(both)}
    return found


def pairs(results: Path) -> dict[str, Any]:
    """Return the figures of :func:`packaged`, or how many pairs there are before all that are planned have run."""
    both = _by_seed(results, OURS).keys() & _by_seed(results, BASELINE).keys()
    return packaged(results) if both == set(PLANNED) else {"so_far": len(both)}


def _by_seed(results: Path, job: str) -> dict[int, Raw]:
    raw = [json.loads(file.read_text(encoding="utf-8")) for file in results.glob(f"packaged-{job}-seed-*.json")]
    return {one["seed"]: one for one in raw}


def _curves(runs: Mapping[int, Raw]) -> dict[str, list[float]]:
    return {str(seed): [accuracy for _, accuracy in runs[seed]["held_out"]] for seed in sorted(runs)}


def _end(raw: Raw) -> float:
    return float(raw["held_out"][-1][1])
