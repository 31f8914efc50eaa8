"""Retrieval reward (algorithm.md section 6): did a retrieved step trace make the policy surer, and when?

    Trajectory --measured_retrievals--> (H_before, H_after) --retrieval_reward--> Z of one retrieval --mean--> Z_ret

Symbols: ``H_before`` is ``before``, the entropy of the generated step ahead of the retrieval; ``H_after`` is ``after``, that of
the generated step behind it. All entropies in nats.

The paper's method has quality ``fall`` and timing ``high_entropy``; its ablations replace one of them.

Choices where the paper is silent:
1. If the step before the retrieval has no entropy (``H_before`` is 0, or below 0 by rounding), ΔH is 0. This leaves the paper's
   reward continuous, since ``|Z| ≤ H_before``.
2. "Reward at low entropy" has ``1 / H_before`` in place of ``H_before`` in eq. 7 (section 5.6.2, appendix G), undefined
   at 0. Entropies below ``LEAST_ENTROPY`` are rounding of float32; this timing takes them as ``LEAST_ENTROPY``.
"""

from __future__ import annotations

import math
from itertools import pairwise

from rapo_rllib.objective.entropy import step_entropy
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Retrieval, Trajectory

PAPER = ObjectiveSettings()
LEAST_ENTROPY = 1e-6  # nats; ``low_entropy`` divides by no less


def entropy_change(before: float, after: float) -> float:
    """Compute the relative fall of the entropy over a retrieval (eq. 5).

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


def retrieval_quality(before: float, after: float, kind: str = "fall", noisy: bool = False) -> float:
    """Compute the quality of a retrieved step trace (eq. 6, or that of an ablation).

        fall (paper): g = tanh(2 ΔH)
        rise ("reward for entropy increase"): g = tanh(-2 ΔH)
        none ("without RQ"): g = 1
        oracle: g = -1 for a random step trace (``retrieval_noise``), else 1; what the best of all qualities could do

    Args:
        before: H_before, nats.
        after: H_after, nats.
        kind: ``retrieval_quality`` of the configuration.
        noisy: whether the step trace was drawn at random; only ``oracle`` uses it.

    Returns:
        g, in [-1, tanh 2] for ``fall``.
    """
    if kind in ("none", "oracle"):
        return -1.0 if noisy and kind == "oracle" else 1.0
    return math.tanh({"fall": 2, "rise": -2}[kind] * entropy_change(before, after))


def retrieval_timing(before: float, kind: str = "high_entropy") -> float:
    """Compute the weight of a retrieval from how unsure the policy was before it (second factor of eq. 7, or an ablation's).

        high_entropy (paper): H_before
        low_entropy ("reward at low entropy", section 5.6.2): 1 / max(H_before, 1e-6)
        none ("without RT"): 1

    Args:
        before: H_before, nats; counts as 0 where rounding put it below.
        kind: ``retrieval_timing`` of the configuration.

    Returns:
        The weight, never negative: nats, 1/nats for ``low_entropy``, no unit for ``none``. Example: 0.5 nats give 0.5, 2, 1.
    """
    return {"high_entropy": max(before, 0.0), "low_entropy": 1 / max(before, LEAST_ENTROPY), "none": 1.0}[kind]


def retrieval_reward(
    before: float, after: float, quality: str = "fall", timing: str = "high_entropy", noisy: bool = False
) -> float:
    """Compute the reward of one retrieval: its quality, weighted by its timing (eq. 7).

        Z(ŝₜ) = g · H_before

    Args:
        before: H_before, nats.
        after: H_after, nats.
        quality: what g is (:func:`retrieval_quality`).
        timing: what stands for the factor H_before (:func:`retrieval_timing`).
        noisy: whether the step trace was drawn at random.

    Returns:
        Z; nats and ``|Z| ≤ H_before`` as in the paper.
    """
    return retrieval_quality(before, after, quality, noisy) * retrieval_timing(before, timing)


def measured_retrievals(
    trajectory: Trajectory, settings: ObjectiveSettings = PAPER
) -> list[tuple[Retrieval, tuple[float, float]]]:
    """Measure the retrievals that stand between two generated steps, in order: each with ``(H_before, H_after)``.

    A retrieval without a generated step after it (the budget ran out) or before it is left out; a step of zero tokens is none.
    Only policy tokens enter: the entropies of a step are those of the tokens the policy generated.

    Example: steps of entropies ``[1.0, 3.0]`` and ``[0.5]``, one retrieval between them, one behind: the first, (2.0, 0.5).

    Args:
        trajectory: with the entropies of its tokens.
        settings: how a step's entropy is made of its tokens' (``step_entropy_tokens``, ``step_entropy_reduction``).
    """

    def entropy(index: int) -> float:
        tokens = trajectory.step_entropies(index)
        return step_entropy(tokens, settings.step_entropy_tokens, settings.step_entropy_reduction)

    pairs = []
    for retrieval in trajectory.retrievals:
        before, after = retrieval.after_step, retrieval.after_step + 1
        if _generated(trajectory, before) and _generated(trajectory, after):
            pairs.append((retrieval, (entropy(before), entropy(after))))
    return pairs


def retrieval_rewards(trajectory: Trajectory, settings: ObjectiveSettings = PAPER) -> list[tuple[Retrieval, float]]:
    """Compute the reward ``Z`` (eq. 7) of each measured retrieval, in nats in the paper's form."""
    kinds = (settings.retrieval_quality, settings.retrieval_timing)
    return [
        (retrieval, retrieval_reward(*pair, *kinds, noisy=retrieval.noisy))
        for retrieval, pair in measured_retrievals(trajectory, settings)
    ]


def trajectory_retrieval_reward(trajectory: Trajectory, settings: ObjectiveSettings = PAPER) -> float:
    """Compute the retrieval reward of a trajectory: the mean over its retrievals (section 6).

        Z_ret = 1/K Σₖ Z(ŝₖ)

    Args:
        trajectory: K is the number of its retrievals that stand between two generated steps.
        settings: ``retrieval_quality``, ``retrieval_timing``, and how a step's entropy is made.

    Returns:
        Z_ret, nats; 0 without such a retrieval, as for every on-policy trajectory.
    """
    rewards = [reward for _, reward in retrieval_rewards(trajectory, settings)]
    return math.fsum(rewards) / len(rewards) if rewards else 0.0


def unaided_retrieval_reward(trajectory: Trajectory, settings: ObjectiveSettings = PAPER) -> float | None:
    """Compute the mean of Z over all pairs of consecutive steps, as if a retrieval stood in each pair.

    It tells how much of ``Z_ret`` comes without any retrieval: e.g. an answer has less entropy than a call.
    It is for the metrics alone.

    Args:
        trajectory: with the entropies of its tokens.
        settings: as of :func:`trajectory_retrieval_reward`.

    Returns:
        Nats; None if the trajectory has fewer than two generated steps.
    """
    entropies = [
        step_entropy(trajectory.step_entropies(index), settings.step_entropy_tokens, settings.step_entropy_reduction)
        for index in range(len(trajectory.steps))
        if _generated(trajectory, index)
    ]
    kinds = (settings.retrieval_quality, settings.retrieval_timing)
    rewards = [retrieval_reward(before, after, *kinds) for before, after in pairwise(entropies)]
    return math.fsum(rewards) / len(rewards) if rewards else None


def _generated(trajectory: Trajectory, index: int) -> bool:
    """Check whether step ``index`` exists and has tokens; an index of -1 (a retrieval ahead of all steps) is no step."""
    return 0 <= index < len(trajectory.steps) and len(trajectory.step_entropies(index)) > 0
