"""Intervals and tests over seeds. ``n`` values, one per seed; all intervals are two-sided, of Student's t."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of ``values`` ``[n]`` and its interval: ``mean ± t · s / √n``. With one value the interval has no end.

    Raises:
        ValueError: there is none.
    """
    data = np.asarray(values, dtype=float)
    if not len(data):
        raise ValueError("values: must not be empty")
    mean = float(data.mean())
    if len(data) == 1:
        return mean, -float("inf"), float("inf")
    half = float(stats.t.ppf((1 + confidence) / 2, len(data) - 1) * data.std(ddof=1) / np.sqrt(len(data)))
    return mean, mean - half, mean + half


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float], equivalent: float = 0.0) -> dict[str, Any]:
    """Mean of ours minus theirs over the seeds that both have, with interval and p of no difference.

    Args:
        ours: by seed.
        theirs: by seed.
        equivalent: above 0, ``is_equivalent`` says whether the 90 % interval lies within ± this (two one-sided tests at 5 %).
    """
    seeds = sorted(ours.keys() & theirs.keys())
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    mean, low, high = mean_interval(differences)
    found = {"mean": mean, "low": low, "high": high, "n": len(seeds), "higher": sum(d > 0 for d in differences)}
    found["p"] = 1.0 if len(seeds) < 2 or np.ptp(differences) == 0 else float(stats.ttest_1samp(differences, 0.0).pvalue)
    if equivalent:
        _, lowest, highest = mean_interval(differences, 0.9)
        found["is_equivalent"] = -equivalent < lowest and highest < equivalent
    return found


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p of a family: the k-th smallest times (m - k + 1), never below the one before it, at most 1."""
    adjusted, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = largest
    return adjusted
