"""Entropy of tokens and of steps (algorithm.md section 5): what the retrieval reward is made from, and where trajectories fork.

    logits of the engine --entropy_and_logprobs--> Trajectory.entropies --step_entropy--> retrieval_reward

Forks are those of ARPO's entropy-based adaptive rollout (section 10; arXiv 2507.19849, section 3.1):

    entropies of the first k tokens of step 0 --> H_0 --+
    entropies of the first k tokens of step t --> H_t --+--> ΔH --branch_probability--> P --> fork or not
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def entropy_and_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, top_k: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the entropy of each token's distribution (eq. 2), and log probability of the token drawn from it; no gradient.

        Zᵢ = Σⱼ exp zᵢⱼ,   Hᵢ = log Zᵢ - Σⱼ exp(zᵢⱼ) zᵢⱼ / Zᵢ,   log pᵢ(tᵢ) = z[i, tᵢ] - log Zᵢ

    z are the logits minus their maximum. Tokens of probability zero (logit -inf) add nothing to H; if drawn, log p is -inf.

    Args:
        logits: ``[..., V]`` logits that were sampled from; computed in float32 whatever their type.
        token_ids: ``[...]`` tᵢ, integers below V.
        top_k: if given, H is only the part of the entropy that the k likeliest tokens account for (section 9: the released code
            reads 10 logprobs), not renormalised; log p is still that under all of V.

    Returns:
        H and log p(t), both ``[...]`` float32, nats.
    """
    with torch.no_grad():
        z, weights, total = _weighed(logits.float())
        drawn = z.gather(-1, token_ids.long().unsqueeze(-1)).squeeze(-1)
        if top_k is None:
            z.clamp_min_(torch.finfo(z.dtype).min)  # z is our own: a copy would cost as much as the exponentials
            entropies = _entropies(z, weights, total)
        else:
            entropies = _top_entropies(z, total, top_k)
        return entropies, drawn - total.log()


def step_entropy(entropies: Sequence[float], num_tokens: int | None = None, reduction: str = "mean") -> float:
    """Compute the entropy of a step from the entropies of its generated tokens (section 5; the released code's: section 9).

        mean (paper): H(s) = 1/n Σᵢ Hᵢ        sum: H(s) = Σᵢ Hᵢ

    The released code also divides by ``log V``. That is no option here, since it changes nothing with the paper's quality and
    timing: it cancels in ΔH (eq. 5); in Z (eq. 7) it is one factor for the whole group, which cancels in eq. 9 (up to its ε,
    and only with ``normalize_std``).

    Args:
        entropies: ``[n]`` Hᵢ of the step's generated tokens, nats.
        num_tokens: how many tokens count, from the step's start on (released code: 20); None: all of them.
        reduction: ``mean`` or ``sum`` (released code).

    Returns:
        H(s), nats.

    Raises:
        ValueError: the step has no generated token, so it has no entropy.
    """
    counted = entropies[:num_tokens]
    if len(counted) == 0:
        raise ValueError("a step without generated tokens has no entropy")
    return math.fsum(counted) / {"mean": len(counted), "sum": 1}[reduction]


def _weighed(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute shifted logits z ``[..., V]``, exp z, and their sum Z ``[...]``; log p = z - log Z."""
    z = logits - logits.detach().amax(dim=-1, keepdim=True)  # any shift gives the same p; this one keeps exp in range
    weights = z.exp()
    return z, weights, weights.sum(dim=-1)


def _entropies(z: torch.Tensor, weights: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Compute H = log Z - Σ p z of finite z: half of log_softmax's passes over V, and no product ``[..., V]`` is written."""
    return total.log() - torch.linalg.vecdot(weights, z) / total


def _top_entropies(z: torch.Tensor, total: torch.Tensor, top_k: int) -> torch.Tensor:
    """Compute the part of H that the ``top_k`` largest z account for."""
    log_p = z.topk(min(top_k, z.shape[-1]), dim=-1).values - total.log().unsqueeze(-1)
    return -(log_p.exp() * _finite(log_p)).sum(dim=-1)


def _finite(values: torch.Tensor) -> torch.Tensor:
    """Put the lowest number in place of -inf: 0 x -inf would be NaN."""
    return values.clamp_min(torch.finfo(values.dtype).min)


def normalized_entropy_change(now: float, baseline: float, vocabulary_size: int) -> float:
    """Compute the normalised rise of the policy's entropy, from the start of the trajectory to behind a tool result.

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
    """Compute the tendency to fork from the rise of the entropy.

        P = α + β · ΔH, cut to [0, 1]

    The paper forks where P exceeds a threshold τ. The released code forks where ``u - w · ΔH ≤ branch_prob`` for a uniform u: a
    coin of probability P with ``α = branch_prob``, ``β = w``.

    Args:
        entropy_change: ΔH.
        base: α.
        weight: β.
    """
    return min(1.0, max(0.0, base + weight * entropy_change))
