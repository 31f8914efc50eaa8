"""Entropy of tokens and of steps (ALGORITHM section 5): what the retrieval reward is made from.

logits of the engine --token_entropy--> Trajectory.entropies --step_entropy--> retrieval_reward
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def token_entropy(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Entropy of each token's distribution over the full vocabulary (eq. 2).

        Hᵢ = -Σⱼ pᵢⱼ log pᵢⱼ,   pᵢ = softmax(logitsᵢ / τ)

    Tokens of probability zero (logit -inf) add nothing, neither to the entropy nor to its gradient.

    Args:
        logits: ``[..., V]`` logits; computed in float32 whatever their type.
        temperature: τ, of the distribution that was sampled from; positive.

    Returns:
        ``[...]`` float32, nats, between 0 and ``log V``.

    Raises:
        ValueError: ``temperature`` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}: a greedy token has no distribution to measure")
    logits = logits.float()
    log_p = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
    finite_log_p = log_p.clamp_min(torch.finfo(log_p.dtype).min)  # p log p: 0 x -inf would be NaN
    return -(log_p.exp() * finite_log_p).sum(dim=-1)


def step_entropy(entropies: Sequence[float]) -> float:
    """Entropy of a step: the mean over its generated tokens (section 5).

        H(s) = 1/n Σᵢ Hᵢ

    Args:
        entropies: ``[n]`` Hᵢ of the step's generated tokens, nats.

    Returns:
        H(s), nats.

    Raises:
        ValueError: the step has no generated token, so it has no entropy.
    """
    if len(entropies) == 0:
        raise ValueError("a step without generated tokens has no entropy")
    return math.fsum(entropies) / len(entropies)
