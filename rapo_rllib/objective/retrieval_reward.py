"""Retrieval reward (algorithm.md section 6): did a retrieved step trace make the policy surer, and when?

    Trajectory --measured_retrievals--> (H_before, H_after) --retrieval_reward--> Z of one retrieval --mean--> Z_ret

Symbols: ``H_before`` is ``before``, the entropy of the generated step ahead of the retrieval; ``H_after`` is ``after``, that of
the generated step behind it. All entropies in nats.

The paper's ablations replace quality or timing; its own are ``fall`` and ``high_entropy``.

Departures from the paper, where it is silent:
1. A step before the retrieval without any entropy (``H_before = 0``, or below it by rounding) has change 0. The paper's reward
   is continuous there, since ``|Z| ≤ H_before``.
2. "Reward at low entropy" has ``1 / H_before`` in place of ``H_before`` in eq. 7 (section 5.6.2, appendix G), undefined
   at 0. Entropies below ``LEAST_ENTROPY`` are rounding of float32, and count as that much there.
"""

from __future__ import annotations

import math
from itertools import pairwise

from rapo_rllib.objective.entropy import step_entropy
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Retrieval, Trajectory

PAPER = ObjectiveSettings()
LEAST_ENTROPY = 1e-6  # nats, that ``low_entropy`` divides by


def entropy_change(before: float, after: float) -> float:
    """Return the relative fall of the entropy over a retrieval (eq. 5).

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
    """Compute the quality of a retrieved step trace (eq. 6), or an ablation's.

        fall (paper): g = tanh(2 ΔH)
        rise ("reward for entropy increase"): g = tanh(-2 ΔH)
        none ("without RQ"): g = 1
        oracle: g = -1 for a random step trace (``retrieval_noise``), else 1; what the best of all qualities could do

    Args:
        before: H_before, nats.
        after: H_after, nats.
        kind: ``retrieval_quality`` of the configuration.
        noisy: the step trace was drawn at random; asked for by ``oracle`` alone.

    Returns:
        g, in [-1, tanh 2] for ``fall``.
    """
    if kind in ("none", "oracle"):
        return -1.0 if noisy and kind == "oracle" else 1.0
    return math.tanh({"fall": 2, "rise": -2}[kind] * entropy_change(before, after))


def retrieval_timing(before: float, kind: str = "high_entropy") -> float:
    """Compute the weight of a retrieval by how unsure the policy was when it came (second factor of eq. 7), or an ablation's.

        high_entropy (paper): H_before
        low_entropy ("reward at low entropy", section 5.6.2): 1 / max(H_before, 1e-6)
        none ("without RT"): 1

    Args:
        before: H_before, nats; counts as 0 where rounding put it below.
        kind: ``retrieval_timing`` of the configuration.

    Returns:
        The weight, never negative: nats, 1/nats for ``low_entropy``, without unit for ``none``. Example: 0.5 nats: 0.5, 2, 1.
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
        noisy: the step trace was drawn at random.

    Returns:
        Z; nats and ``|Z| ≤ H_before`` as in the paper.
    """
    return retrieval_quality(before, after, quality, noisy) * retrieval_timing(before, timing)


def measured_retrievals(
    trajectory: Trajectory, settings: ObjectiveSettings = PAPER
) -> list[tuple[Retrieval, tuple[float, float]]]:
    """Return the retrievals that stand between two generated steps, in order, each with ``(H_before, H_after)``.

    Left out are retrievals that nothing was generated after (the budget ran out) or before; a step of zero tokens is none.
    Only policy tokens enter: the entropies of a step are those of the tokens the policy generated.

    Example: steps of entropies ``[1.0, 3.0]`` and ``[0.5]``, one retrieval between them and one behind: the former, (2.0, 0.5).

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
    """Return the retrievals with their rewards ``Z`` (eq. 7), nats in the paper's form."""
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
    """Compute Z_ret of a trajectory as if it had retrieved: the mean of Z over each two steps that follow each other.

    It tells how much of ``Z_ret`` comes without any retrieval, since an answer, say, has less entropy than a call.
    It is for the metrics alone.

    Args:
        trajectory: with the entropies of its tokens.
        settings: as of :func:`trajectory_retrieval_reward`.

    Returns:
        Nats; None where it has fewer than two generated steps.
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
    """Return whether step ``index`` exists and has tokens; an index of -1 (a retrieval ahead of all steps) is no step."""
    return 0 <= index < len(trajectory.steps) and len(trajectory.step_entropies(index)) > 0
