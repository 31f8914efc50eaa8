"""Retrieval reward (ALGORITHM section 6): did a retrieved step trace make the policy surer, and when?

    Trajectory --retrieval_entropies--> (H_before, H_after) --retrieval_reward--> Z of one retrieval --mean--> Z_ret

Symbols: ``H_before`` is ``before``, the entropy of the generated step ahead of the retrieval; ``H_after`` is ``after``, that of
the generated step behind it. All entropies in nats.

Departure from the paper, where it is silent: a step before the retrieval without any entropy (``H_before = 0``, or below it by
rounding) has change, quality and reward 0. The reward is continuous there, since ``|Z| ≤ H_before``.
"""

from __future__ import annotations

import math

from rapo_rllib.objective.entropy import step_entropy
from rapo_rllib.types import Trajectory


def entropy_change(before: float, after: float) -> float:
    """Relative fall of the entropy over a retrieval (eq. 5).

        ΔH = -(H_after - H_before) / H_before

    Args:
        before: H_before, nats.
        after: H_after, nats.

    Returns:
        ΔH, at most 1; positive where the entropy fell; 0 where H_before is 0.
    """
    if before <= 0:
        return 0.0
    return -(after - before) / before


def retrieval_quality(before: float, after: float) -> float:
    """Quality of a retrieved step trace (eq. 6).

        g = tanh(2 ΔH)

    Args:
        before: H_before, nats.
        after: H_after, nats.

    Returns:
        g, in [-1, tanh 2].
    """
    return math.tanh(2 * entropy_change(before, after))


def retrieval_reward(before: float, after: float) -> float:
    """Reward of one retrieval: its quality, weighted by how unsure the policy was when it came, its timing (eq. 7).

        Z(ŝₜ) = g · H_before

    Args:
        before: H_before, nats.
        after: H_after, nats.

    Returns:
        Z, nats; ``|Z| ≤ H_before``.
    """
    return retrieval_quality(before, after) * max(before, 0.0)


def retrieval_entropies(trajectory: Trajectory) -> list[tuple[float, float]]:
    """``(H_before, H_after)`` of the retrievals that stand between two generated steps, in order.

    Left out are retrievals that nothing was generated after (the budget ran out) or before; a step of zero tokens is none.
    Only policy tokens enter: the entropies of a step are those of the tokens the policy generated.

    Example: steps of entropies ``[1.0, 3.0]`` and ``[0.5]``, a retrieval between them and one at the end: ``[(2.0, 0.5)]``.
    """
    pairs = []
    for retrieval in trajectory.retrievals:
        before, after = retrieval.after_step, retrieval.after_step + 1
        if _generated(trajectory, before) and _generated(trajectory, after):
            pairs.append((step_entropy(trajectory.step_entropies(before)), step_entropy(trajectory.step_entropies(after))))
    return pairs


def trajectory_retrieval_reward(trajectory: Trajectory) -> float:
    """Retrieval reward of a trajectory: the mean over its retrievals (section 6).

        Z_ret = 1/K Σₖ Z(ŝₖ)

    Args:
        trajectory: K is the number of its retrievals that stand between two generated steps.

    Returns:
        Z_ret, nats; 0 without such a retrieval, as for every on-policy trajectory.
    """
    rewards = [retrieval_reward(before, after) for before, after in retrieval_entropies(trajectory)]
    return math.fsum(rewards) / len(rewards) if rewards else 0.0


def _generated(trajectory: Trajectory, index: int) -> bool:
    """Whether step ``index`` exists and has tokens; an index of -1 (a retrieval ahead of all steps) is no step."""
    return 0 <= index < len(trajectory.steps) and len(trajectory.step_entropies(index)) > 0
