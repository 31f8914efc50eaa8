"""Advantages of the trajectories of one group (algorithm.md section 7).

    outcome rewards R   --outcome_advantages-->   A_acc --+
    retrieval rewards Z --retrieval_advantages--> A_ret --+--combined_advantages--> A, for every generated token

Shapes: ``G`` trajectories of the group. Computed in float64; results are float32, or float64 where a float64 tensor came in.

Choices where the paper is silent (algorithm.md section 9); both advantages follow them:
1. The standard deviation is the unbiased one (n - 1).
2. A group of equal values has advantages of exactly 0, free of rounding. So has a single trajectory, e.g. if all others of its
   group failed; the released code takes its whole reward as advantage, without a baseline.

Not the paper's: :func:`kind_advantages`, one baseline for the trajectories that retrieved, and another for the others; and
:func:`overlong_punishment`, DAPO's, which joins the rewards.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch

Values = torch.Tensor | Sequence[float]


def outcome_advantages(rewards: Values, normalize_std: bool = True, epsilon: float = 1e-6) -> torch.Tensor:
    """Compute the outcome advantages of a group, GRPO (section 7).

        A_acc = (R - mean R) / (std R + ε)

    Args:
        rewards: R, ``[G]`` outcome rewards.
        normalize_std: divide by ``std R + ε``; without it the advantage is ``R - mean R`` (Dr. GRPO).
        epsilon: ε, keeps the quotient finite; of the rewards' unit.

    Returns:
        A_acc, ``[G]``.
    """
    return _group_normalized(rewards, normalize_std, epsilon)


def compared_places(kinds: Sequence[Hashable]) -> list[list[int]]:
    """List the places of the members of each kind; kinds are in the order of their first members.

    Example: kinds ``a b a`` have places ``[[0, 2], [1]]``.
    """
    return [[place for place, other in enumerate(kinds) if other == kind] for kind in dict.fromkeys(kinds)]


def kind_advantages(
    rewards: Values, kinds: Sequence[Hashable], normalize_std: bool = True, epsilon: float = 1e-6
) -> torch.Tensor:
    """Compute outcome advantages within each kind of trajectory; the form is ours (``advantage_baseline: kind``).

        A_i = (R_i - mean_{j ∈ K(i)} R_j) / (std_{j ∈ K(i)} R_j + ε),   K(i): the members of i's kind; 0 where i is alone in it

    Kinds are not compared with each other. So a success that was shown the answer does not lower the advantages of trajectories
    that were shown nothing; one baseline for all would.

    Args:
        rewards: R, ``[G]`` outcome rewards.
        kinds: the kind of each member, ``[G]``: whether it retrieved.
        normalize_std: divide by ``std R + ε``.
        epsilon: ε, of the rewards' unit.

    Returns:
        A, ``[G]``; each kind's sum to 0. Example: R = 1, 1, 0, 1, 0, 0 of kinds 1, 1, 1, 0, 0, 0 without ``normalize_std``:
        1/3, 1/3, -2/3, 2/3, -1/3, -1/3.

    Raises:
        ValueError: ``rewards`` and ``kinds`` differ in length.
    """
    x = _doubles(rewards)
    if len(x) != len(kinds):
        raise ValueError(f"one kind per reward: got {len(kinds)}, expected {len(x)}")
    found = torch.zeros_like(x)
    for places in compared_places(kinds):
        found[places] = _group_normalized(x[places], normalize_std, epsilon)
    return found.to(_result_dtype(rewards))


def retrieval_advantages(retrieval_rewards: Values, normalize_std: bool = True, epsilon: float = 1e-6) -> torch.Tensor:
    """Compute the retrieval advantages over the same group, on-policy trajectories (Z = 0) included (eq. 9).

        A_ret = (Z - mean Z) / (std Z + ε)

    Args:
        retrieval_rewards: Z, ``[G]`` ``Z_ret`` of each trajectory, nats.
        normalize_std: divide by ``std Z + ε``, as in eq. 9.
        epsilon: ε, nats.

    Returns:
        A_ret, ``[G]``; 0 for all if no trajectory retrieved anything, or if there is only one.
    """
    return _group_normalized(retrieval_rewards, normalize_std, epsilon)


def combined_advantages(outcome: Values, retrieval: Values, weight: float) -> torch.Tensor:
    """Compute the advantage that the policy is trained with (eq. 10).

        A = (1 + a · A_ret) · A_acc

    The retrieval advantage scales the outcome advantage and adds nothing to it: if A_acc is 0, A is 0 whatever Z. With a = 0.2
    the factor is positive in groups of up to 26, as ``|A_ret| ≤ (G - 1) / √G``; in larger ones an outlier can flip its sign.

    Args:
        outcome: A_acc, ``[G]``.
        retrieval: A_ret, ``[G]``.
        weight: a; the paper's is 0.2.

    Returns:
        A, ``[G]``.

    Raises:
        ValueError: ``outcome`` and ``retrieval`` differ in length.
    """
    a_acc, a_ret = _doubles(outcome), _doubles(retrieval)
    if a_acc.shape != a_ret.shape:
        raise ValueError(f"one retrieval advantage per outcome advantage: got {len(a_ret)}, expected {len(a_acc)}")
    return ((1 + weight * a_ret) * a_acc).to(_result_dtype(outcome))


def shared_token_advantages(
    advantages: Sequence[Sequence[float]], segments: Sequence[Sequence[tuple[int, int]]]
) -> list[torch.Tensor]:
    """Attribute hard over branches: a token that d trajectories share gets the mean of its d advantages (section 10).

        Aᵢ,ₜ = 1/d Σⱼ Aⱼ,ₜ   over the d trajectories j that hold the very token t of trajectory i

    A token of one trajectory alone has d = 1 and keeps its advantage, so that without branches nothing changes. (With soft
    attribution, every token has the advantage of its own trajectory.)

    Args:
        advantages: A, of each response token of ``G`` trajectories.
        segments: of each trajectory, ``(first token, writer from there on)``; empty: it wrote all its tokens itself. Two
            trajectories share token t if both have it from the same writer.

    Returns:
        ``G`` float64 tensors, as long as the trajectories.

    Example: A of 3 tokens with advantage 2; B took over its first 2 tokens, wrote 2 more, and has advantage -1:
    ``[[0.5, 0.5, 2.0], [0.5, 0.5, -1.0, -1.0]]``.
    """
    writers = [_writers(len(line), own, f"alone-{i}") for i, (line, own) in enumerate(zip(advantages, segments, strict=True))]
    held: dict[tuple[object, int], list[float]] = {}
    for values, line in zip(advantages, writers, strict=True):
        for position, (value, writer) in enumerate(zip(values, line, strict=True)):
            held.setdefault((writer, position), []).append(value)
    means = {token: math.fsum(values) / len(values) for token, values in held.items()}
    return [torch.tensor([means[w, t] for t, w in enumerate(line)], dtype=torch.float64) for line in writers]


def _writers(length: int, segments: Sequence[tuple[int, int]], alone: str) -> list[object]:
    """List the writer of each token of a trajectory: of the last segment that starts at or before it, else ``alone``."""
    writers: list[object] = [alone] * length
    for start, writer in segments:
        writers[start:] = [writer] * (length - start)
    return writers


def has_signal(rewards: Values) -> bool:
    """Check whether a group's outcome advantages are not all 0, so that it has a gradient (section 7).

    False for equal rewards, for a single reward, and for none.

    Args:
        rewards: R, ``[G]`` outcome rewards, of ``TrajectoryGroup.members``.
    """
    return not _all_equal(_doubles(rewards))


def _group_normalized(values: Values, normalize_std: bool, epsilon: float) -> torch.Tensor:
    x = _doubles(values)
    if _all_equal(x):
        mean, std = x, torch.zeros_like(x)  # a computed mean may miss x by rounding
    else:
        mean, std = x.mean(), x.std(unbiased=True)
    return ((x - mean) / (std + epsilon) if normalize_std else x - mean).to(_result_dtype(values))


def _all_equal(x: torch.Tensor) -> bool:
    return bool((x == x[:1]).all())


def _doubles(values: Values) -> torch.Tensor:
    x = torch.as_tensor(values, dtype=torch.float64)
    if x.ndim != 1:
        raise ValueError(f"expected one number per trajectory, shape [G], got shape {list(x.shape)}")
    return x


def _result_dtype(values: Values) -> torch.dtype:
    return torch.float64 if isinstance(values, torch.Tensor) and values.dtype == torch.float64 else torch.float32


def overlong_punishment(length: int, limit: float, buffer: float) -> float:
    """Compute the punishment of one response by its length, linear over the end of the budget.

        R(y) = 0                              where |y| ≤ L_max - L_cache
        R(y) = (L_max - L_cache - |y|) / L_cache   where |y| ≤ L_max
        R(y) = -1                             above

    Args:
        length: |y|, response tokens. Tokens of observations and step traces count, too, since they use up the same budget; so
            do those of a tool's result that no longer fitted and ended the trajectory.
        limit: L_max, tokens.
        buffer: L_cache, tokens, at most ``limit``; 0: no punishment at all.

    Returns:
        R(y), in [-1, 0].
    """
    if buffer <= 0:
        return 0.0
    return -min(1.0, max(0.0, (length - (limit - buffer)) / buffer))
