"""Log-probabilities and entropies of chosen tokens, without ever holding the logits of all of them.

``[N, V]`` logits of a few thousand tokens over a large vocabulary are bigger than the model. So the LM head runs on chunks of
hidden states; a chunk's logits are dropped and computed again in the backward pass. The last chunk's are kept instead: memory
peaks at one chunk either way. Flow: backbone -> hidden states of the loss positions -> here -> objective.

Shapes: ``N`` tokens, ``D`` hidden size, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

ELEMENTS_AT_ONCE = 2**20  # of logits, on a CPU: 4 MiB in float32

Head = Callable[[torch.Tensor], torch.Tensor]  # [n, D] hidden states -> [n, V] logits that were sampled from


def logprobs_and_entropies(
    hidden: torch.Tensor, targets: torch.Tensor, head: Head, chunk_size: int = 1024
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target, and entropy over the full vocabulary (eq. 2), of the softmax of the head's logits.

    Args:
        hidden: ``[N, D]`` hidden states, one per target.
        targets: ``[N]`` token ids.
        head: the LM head; called on at most ``chunk_size`` rows at a time, twice where gradients are needed.
        chunk_size: tokens whose logits exist at the same time.

    Returns:
        Logprobs ``[N]`` in nats with gradient, and entropies ``[N]`` in nats without (no objective here differentiates them).
    """
    first = len(targets) % chunk_size or chunk_size  # the odd one is the first: the last, a whole one, is not computed twice
    edges = [0, *range(first, len(targets), chunk_size), len(targets)]
    logprobs, entropies = [], []
    for start, stop in pairwise(edges):
        inputs = (hidden[start:stop], targets[start:stop], head)
        if torch.is_grad_enabled() and stop < len(targets):
            chunk = checkpoint(_chunk, *inputs, use_reentrant=False, preserve_rng_state=False)
        else:
            chunk = _chunk(*inputs)
        logprobs.append(chunk[0])
        entropies.append(chunk[1])
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk(hidden: torch.Tensor, targets: torch.Tensor, head: Head) -> tuple[torch.Tensor, torch.Tensor]:
    return _TargetLogprobs.apply(head(hidden), targets)


class _TargetLogprobs(torch.autograd.Function):
    """``logits [n, V]`` -> log-softmax at the targets ``[n]`` and entropies ``[n]``, in at least float32."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weigh = _weighed_in_slices if logits.device.type == "cpu" else partial(_compiled(_weighed), dot=_sum_of_products)
        normalizers, entropies = weigh(logits)
        ctx.save_for_backward(logits, targets, normalizers)
        ctx.mark_non_differentiable(entropies)
        return logits.gather(-1, targets[:, None])[:, 0].to(normalizers.dtype) - normalizers, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, targets, normalizers = ctx.saved_tensors
        differentiate = _gradient_in_slices if logits.device.type == "cpu" else _compiled(_gradient)
        return differentiate(logits, targets, normalizers, gradients[0]), None


def _weighed(logits: torch.Tensor, dot: Callable[..., torch.Tensor] = torch.linalg.vecdot) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithms of the normalisers, and entropies, ``[n]`` each."""
    values = logits.to(torch.promote_types(logits.dtype, torch.float32))
    greatest = values.amax(-1, keepdim=True)
    weights = (values - greatest).exp_()
    total = weights.sum(-1)
    normalizers = total.log() + greatest[:, 0]
    return normalizers, normalizers - dot(weights, values) / total


def _sum_of_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """As vecdot, which is a product of matrices to the compiler, so that it would write both."""
    return (left * right).sum(-1)


def _gradient(logits: torch.Tensor, targets: torch.Tensor, normalizers: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """``factor * d log p(target) / d logit = factor * (1[target] - p)``, ``[n, V]``."""
    probs = (logits.to(normalizers.dtype) - normalizers[:, None]).exp_()
    drawn = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    return (torch.where(drawn, 1 - probs, -probs) * factors[:, None]).to(logits.dtype)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """On a GPU, whose memory is slower than its arithmetic: one pass over the logits, where each operation would be one."""
    return torch.compile(function, dynamic=True)


def _weighed_in_slices(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A few rows at a time, which stay in a CPU's cache: log-softmax of all would go through main memory six times."""
    found = [_weighed(logits[rows]) for rows in _row_slices(logits)]
    return torch.cat([normalizers for normalizers, _ in found]), torch.cat([entropies for _, entropies in found])


def _gradient_in_slices(
    logits: torch.Tensor, targets: torch.Tensor, normalizers: torch.Tensor, factors: torch.Tensor
) -> torch.Tensor:
    result = torch.empty_like(logits)
    for rows in _row_slices(logits):
        result[rows] = (logits[rows].to(factors.dtype) - normalizers[rows, None]).exp_().mul_(-factors[rows, None])
    return result.scatter_add_(-1, targets[:, None], factors[:, None].to(result.dtype))


def _row_slices(logits: torch.Tensor) -> list[slice]:
    size = max(1, ELEMENTS_AT_ONCE // logits.shape[-1])
    return [slice(start, start + size) for start in range(0, len(logits), size)]
