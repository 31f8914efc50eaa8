"""Forks of trajectories: ARPO's entropy-based adaptive rollout (algorithm.md section 10; arXiv 2507.19849, section 3.1).

entropies of the first k tokens of step 0 --> H_0 --+
entropies of the first k tokens of step t --> H_t --+--> ΔH --branch_probability--> P --> fork or not
"""

from __future__ import annotations

import math


def normalized_entropy_change(now: float, baseline: float, vocabulary_size: int) -> float:
    """Rise of the policy's entropy from the start to after a tool result, normalised.

        ΔH = (H_t - H_0) / log V

    Positive where the uncertainty rose. ``log V`` is the entropy of the uniform distribution, so that ΔH is in [-1, 1] for any
    vocabulary.

    Args:
        now: H_t, nats.
        baseline: H_0, nats.
        vocabulary_size: V, at least 2.

    Returns:
        ΔH, without unit.
    """
    return (now - baseline) / math.log(vocabulary_size)


def branch_probability(entropy_change: float, base: float, weight: float) -> float:
    """Tendency to fork.

        P = α + β · ΔH, cut to [0, 1]

    The paper forks where P exceeds a threshold τ. The released code forks where ``u - w · ΔH ≤ branch_prob`` for a uniform u: a
    coin of probability P with ``α = branch_prob``, ``β = w``.

    Args:
        entropy_change: ΔH.
        base: α.
        weight: β.
    """
    return min(1.0, max(0.0, base + weight * entropy_change))
