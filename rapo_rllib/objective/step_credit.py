"""Advantages of single steps, from rewards of single steps (docs/credit.md).

    step rewards and states --state_advantages--> A^S of each step, beside A^E of its trajectory (GiGPO, arXiv 2505.10978)

Shapes: ``G`` trajectories of a group, trajectory ``i`` with ``K_i`` steps; ``r[i][k]`` is what step ``k`` of it earned.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from rapo_rllib.objective.advantages import outcome_advantages

Steps = Sequence[Sequence[float]]  # [G][K_i]
States = Sequence[Sequence[Hashable]]  # [G][K_i]


def returns(rewards: Sequence[float], discount: float) -> list[float]:
    """Compute the return of each step: its own reward, and the discounted rewards of all later steps.

        G_k = Σ_{l ≥ k} γ^(l - k) r_l

    Args:
        rewards: r, ``[K]``.
        discount: γ, in (0, 1].

    Returns:
        G, ``[K]``. Example: r = 0, 1, 2 and γ = 0.5: 1, 2, 2.
    """
    found = list(rewards)
    for k in range(len(found) - 2, -1, -1):
        found[k] += discount * found[k + 1]
    return found


def state_groups(states: States) -> list[list[tuple[int, int]]]:
    """Group steps ``(trajectory, step)`` by the state that they start from; states of a single step are left out."""
    groups: dict[Hashable, list[tuple[int, int]]] = {}
    for i, own in enumerate(states):
        for k, state in enumerate(own):
            groups.setdefault(state, []).append((i, k))
    return [group for group in groups.values() if len(group) > 1]


def state_advantages(
    rewards: Steps, states: States, discount: float = 1.0, normalize_std: bool = True, epsilon: float = 1e-6
) -> list[torch.Tensor]:
    """Compute the advantage of each step among those that start from the same state (GiGPO's step level).

        A^S_ik = (G_ik - mean G) / (std G + ε)   over the steps of the group that start from the state of step k of i
        G_ik = Σ_{l ≥ k} γ^(l - k) r_il

    If only one step starts from a state, its A^S is 0. GiGPO trains with ``A^E + A^S``, where A^E is GRPO's advantage.

    Args:
        rewards: r, ``[G][K_i]``.
        states: a key of the state that each step starts from, ``[G][K_i]``. A trajectory may come to a state more than once.
        discount: γ, in (0, 1]; the paper's code has 0.95.
        normalize_std: divide by ``std G + ε``; False is the paper's F_norm = 1.
        epsilon: ε.

    Returns:
        A^S, float64 ``[K_i]`` each.
    """
    found = [returns(own, discount) for own in rewards]
    advantages = [torch.zeros(len(own), dtype=torch.float64) for own in found]
    for group in state_groups(states):
        values = torch.tensor([found[i][k] for i, k in group], dtype=torch.float64)
        for (i, k), value in zip(group, outcome_advantages(values, normalize_std, epsilon), strict=True):
            advantages[i][k] = value
    return advantages
