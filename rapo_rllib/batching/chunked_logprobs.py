"""Log-probabilities and entropies of chosen tokens, without ever holding the logits of all of them.

``[N, V]`` logits of a few thousand tokens over a large vocabulary are bigger than the model. So the LM head runs on chunks of
hidden states; a chunk's logits are dropped and computed again in the backward pass. The last chunk's are kept instead: memory
peaks at one chunk either way. Flow: backbone -> hidden states of the loss positions -> here -> objective.

Shapes: ``N`` tokens, ``D`` hidden size, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

Head = Callable[[torch.Tensor], torch.Tensor]  # [n, D] hidden states -> [n, V] logits


def logprobs_and_entropies(
    hidden: torch.Tensor, targets: torch.Tensor, head: Head, temperature: float = 1.0, chunk_size: int = 1024
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target, and entropy over the full vocabulary (eq. 2), of ``softmax(logits / temperature)``.

    Args:
        hidden: ``[N, D]`` hidden states, one per target.
        targets: ``[N]`` token ids.
        head: the LM head; called on at most ``chunk_size`` rows at a time, twice where gradients are needed.
        temperature: of the distribution that was sampled from; positive.
        chunk_size: tokens whose logits exist at the same time.

    Returns:
        Logprobs ``[N]`` in nats with gradient, and entropies ``[N]`` in nats without (no objective here differentiates them).
    """
    starts = range(0, len(targets), chunk_size)
    logprobs, entropies = [], []
    for start in starts:
        inputs = (hidden[start : start + chunk_size], targets[start : start + chunk_size], head, temperature)
        if torch.is_grad_enabled() and start + chunk_size < len(targets):
            chunk = checkpoint(_chunk, *inputs, use_reentrant=False, preserve_rng_state=False)
        else:
            chunk = _chunk(*inputs)
        logprobs.append(chunk[0])
        entropies.append(chunk[1])
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk(hidden: torch.Tensor, targets: torch.Tensor, head: Head, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    log_p = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)  # [n, V]
    with torch.no_grad():
        entropies = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, targets[:, None]).squeeze(-1), entropies
