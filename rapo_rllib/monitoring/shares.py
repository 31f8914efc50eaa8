"""Tell a difference between two shares from chance."""

from __future__ import annotations

import math


def errors_apart(right: float, count: float, other_right: float, other_count: float) -> float:
    """Count the standard errors by which one share is above another.

        z = (p - q) / √(r (1 - r) (1/m + 1/n)),   p = right / m, q = other_right / n, r = all right / (m + n)

    The pooled share r keeps the error above 0 where one share is 0 or 1. Trajectories of one question are not independent: of
    them z says too much, and a rule must ask for more than z.

    Args:
        right: of ``count``.
        count: m.
        other_right: of ``other_count``.
        other_count: n.

    Returns:
        z; 0 where all are right, or all wrong. Example: 25 of 128 and 4 of 128: 4.1.
    """
    pooled = (right + other_right) / (count + other_count)
    error = math.sqrt(pooled * (1 - pooled) * (1 / count + 1 / other_count))
    return (right / count - other_right / other_count) / error if error else 0.0
