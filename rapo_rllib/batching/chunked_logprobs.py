"""Log-probabilities and entropies of chosen tokens, without ever holding the logits of all tokens at once.

``[N, V]`` logits of a few thousand tokens over a large vocabulary are bigger than the model. So the LM head runs on chunks of
hidden states. A chunk's logits are dropped, and computed again in the backward pass. Only the last chunk's are kept: memory
peaks at one chunk either way. Flow: backbone -> hidden states of the loss positions -> here -> objective.

Shapes: ``N`` tokens, ``D`` hidden size, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

ELEMENTS_AT_ONCE_CPU, ELEMENTS_AT_ONCE = 2**20, 2**26  # of logits, on a CPU and elsewhere: 4 and 256 MiB in float32

Head = Callable[[torch.Tensor], torch.Tensor]  # [n, D] hidden states -> [n, V] logits of the sampling distribution


def logprobs_and_entropies(
    hidden: torch.Tensor, targets: torch.Tensor, head: Head, chunk_size: int = 1024
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the log-probability of each target and the entropy over the full vocabulary (eq. 2), from the head's logits.

    Args:
        hidden: ``[N, D]`` hidden states, one per target.
        targets: ``[N]`` token ids.
        head: the LM head; called on at most ``chunk_size`` rows at a time; with gradients, twice on all chunks but the last.
        chunk_size: most tokens whose logits exist at the same time.

    Returns:
        Logprobs ``[N]`` in nats with gradient, and entropies ``[N]`` in nats without (no objective here differentiates them).
    """
    first = len(targets) % chunk_size or chunk_size  # the short chunk is first: the last one, never computed twice, is full
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
    """``logits [n, V]`` -> log-softmax at the targets ``[n]`` and entropies ``[n]``, in at least float32.

    A few rows are computed at a time. So on a CPU they stay in the cache, while log-softmax of all rows would go through main
    memory six times; and bfloat16 logits never exist as a whole in float32, too.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        normalizers, entropies = (torch.empty(len(targets), dtype=dtype, device=logits.device) for _ in range(2))
        for rows in _row_slices(logits):
            values = logits[rows].to(dtype)
            greatest = values.amax(-1, keepdim=True)
            weights = (values - greatest).exp_()
            total = weights.sum(-1)
            normalizers[rows] = total.log() + greatest[:, 0]
            entropies[rows] = normalizers[rows] - weights.mul_(values).sum(-1) / total
            del values, weights  # before the next ones are made
        ctx.save_for_backward(logits, targets, normalizers)
        ctx.mark_non_differentiable(entropies)
        return logits.gather(-1, targets[:, None])[:, 0].to(dtype) - normalizers, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # d log p(target) / d logit = 1[target] - p
        logits, targets, normalizers = ctx.saved_tensors
        scale = gradients[0][:, None]
        for rows in _row_slices(logits):  # in place of the logits: they are not read again, and may be gigabytes
            values = (logits[rows].to(scale.dtype) - normalizers[rows, None]).exp_().mul_(-scale[rows])
            logits[rows] = values.scatter_add_(-1, targets[rows, None], scale[rows])  # before rounding: 1 - p may be small
            del values  # before the next ones are made
        return logits, None


def _row_slices(logits: torch.Tensor) -> list[slice]:
    elements = ELEMENTS_AT_ONCE_CPU if logits.device.type == "cpu" else ELEMENTS_AT_ONCE
    size = max(1, elements // logits.shape[-1])
    return [slice(start, start + size) for start in range(0, len(logits), size)]
