"""Advantages of single steps, from rewards of single steps (docs/credit.md).

    step rewards --returns--> G_k --step_advantages----------> A of each step
    step rewards without the outcome --turn_advantages--> A^T of each turn, beside A^O of the outcome (MT-GRPO)
    step rewards and states --state_advantages--> A^S of each step, beside A^E of its trajectory (GiGPO, arXiv 2505.10978)

Shapes: ``G`` trajectories of a group, trajectory ``i`` with ``K_i`` steps; ``r[i][k]`` is what step ``k`` of it earned.

Whether a baseline leaves the policy gradient as it is: one of step ``k`` may depend on the other trajectories, and on what
trajectory ``i`` did before step ``k``; never on whether ``i`` goes on behind it, which is an action of step ``k`` itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from rapo_rllib.objective.advantages import outcome_advantages

Steps = Sequence[Sequence[float]]  # [G][K_i]


def returns(rewards: Sequence[float], discount: float) -> list[float]:
    """The reward of each step and of those behind it.

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


def step_advantages(
    rewards: Steps, discount: float = 1.0, normalize_std: bool = True, epsilon: float = 1e-6
) -> list[torch.Tensor]:
    """Advantage of each step by what it and later steps earned, against the whole group.

        A_ik = (G_ik - mean_j G_jk) / (std_j G_jk + ε)

    over all G trajectories j; one that has ended before step k stands there with the return of its last step. So every step has
    a baseline of the same G numbers: without ``normalize_std`` the gradient is the policy gradient times (G - 1) / G, as GRPO's
    is for whole trajectories. With a reward at the end alone and γ = 1 it is GRPO's advantage, for every step.

    This form is ours. It is GRPO's baseline, taken per step.

    Args:
        rewards: r, ``[G][K_i]``; every trajectory has a step.
        discount: γ, in (0, 1].
        normalize_std: divide by the deviation, as GRPO does; its bias is GRPO's.
        epsilon: ε.

    Returns:
        A, float64 ``[K_i]`` each.
    """
    found = [returns(own, discount) for own in rewards]
    longest = max(map(len, found), default=0)
    columns = [_normalized([own[min(k, len(own) - 1)] for own in found], normalize_std, epsilon) for k in range(longest)]
    return [torch.tensor([columns[k][i] for k in range(len(own))], dtype=torch.float64) for i, own in enumerate(found)]


def turn_advantages(
    rewards: Steps, discount: float = 1.0, baseline: str = "group", normalize_std: bool = True, epsilon: float = 1e-6
) -> list[torch.Tensor]:
    """A^T of MT-GRPO (arXiv 2505.11821): advantage of the rewards that turns earned before the end.

        reached:  A^T_ik = Σ_{k ≤ l < K_i - 1} γ^(l - k) (r_il - mean_j r_jl) / (std_j r_jl + ε)
                  over the trajectories j that have the turn l; 0 for one that has it alone
        group:    A^T_ik = (T_ik - mean_j T_jk) / (std_j T_jk + ε),  T_ik = Σ_{k ≤ l < K_i - 1} γ^(l - k) r_il
                  over all j, 0 behind their ends

    The last step's reward is the outcome, and no turn's. The paper has one turn before the answer, which every trajectory has:
    both forms are the paper's there. The sums for more turns, and ``group``, are ours.

    ``reached`` is biased where the policy decides how many turns there are (verl#7244): what it takes off turn l it takes off
    only those that went on to l. If going on always earns 1, all that went on are equal, so going on earns an
    advantage of 0, and the policy does not learn it. ``group`` counts ended ones as 0, and is the policy gradient times
    (G - 1) / G without ``normalize_std``.

    Args:
        rewards: r, ``[G][K_i]``, the outcome in the last step.
        discount: γ, in (0, 1].
        baseline: ``turn_baseline`` of the configuration.
        normalize_std: divide by the deviation.
        epsilon: ε.

    Returns:
        A^T, float64 ``[K_i]`` each. That of the last step is 0 by ``reached``; by ``group`` it is what it gave up by ending.
    """
    turns = [list(own[:-1]) for own in rewards]
    if baseline == "reached":
        return [
            torch.tensor(own, dtype=torch.float64) for own in _among_those_that_reached(turns, discount, normalize_std, epsilon)
        ]
    longest = max(map(len, rewards), default=0)
    padded = [returns([*own, *[0.0] * (longest - len(own))], discount) for own in turns]
    columns = [_normalized([own[k] for own in padded], normalize_std, epsilon) for k in range(longest)]
    return [torch.tensor([columns[k][i] for k in range(len(own))], dtype=torch.float64) for i, own in enumerate(rewards)]


def _among_those_that_reached(turns: Steps, discount: float, normalize_std: bool, epsilon: float) -> list[list[float]]:
    found = [[0.0] * (len(own) + 1) for own in turns]
    for turn in range(max(map(len, turns), default=0)):
        there = [i for i, own in enumerate(turns) if turn < len(own)]
        values = _normalized([turns[i][turn] for i in there], normalize_std, epsilon)
        for i, value in zip(there, values, strict=True):
            found[i][turn] = value
    return [returns(own, discount) for own in found]


def _normalized(values: Sequence[float], normalize_std: bool, epsilon: float) -> list[float]:
    return outcome_advantages(torch.tensor(values, dtype=torch.float64), normalize_std, epsilon).tolist()


States = Sequence[Sequence[Hashable]]  # [G][K_i]


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
    """Advantage of each step among those that start from the same state (GiGPO's step level).

        A^S_ik = (G_ik - mean G) / (std G + ε)   over the steps of the group that start from the state of step k of i
        G_ik = Σ_{l ≥ k} γ^(l - k) r_il

    A state that one step alone starts from says nothing about it: A^S is 0. GiGPO trains with ``A^E + A^S``, A^E GRPO's.

    Args:
        rewards: r, ``[G][K_i]``.
        states: a key of the state that each step starts from, ``[G][K_i]``. A trajectory may come to a state more than once.
        discount: γ, in (0, 1]; the paper's code has 0.95.
        normalize_std: divide by the deviation; without it the paper's F_norm = 1.
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
