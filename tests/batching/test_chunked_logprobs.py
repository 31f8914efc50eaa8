"""Chunks give what the whole gives, and logits of more than one chunk never exist together."""

from __future__ import annotations

import math

import pytest
import torch

from rapo_rllib.batching.chunked_logprobs import logprobs_and_entropies


def test_hand_worked_distribution() -> None:
    # logits [0, ln 3] -> p = [1/4, 3/4]: log p(1) = ln 3/4; H = 1/4 ln 4 + 3/4 ln 4/3 = 0.562335
    # temperature 0.5 -> logits [0, ln 9] -> p = [1/10, 9/10]: log p(0) = -ln 10; H = 0.1 ln 10 + 0.9 ln 10/9 = 0.325083
    hidden = torch.tensor([[math.log(3.0)]])
    head = torch.nn.functional.pad
    logprobs, entropies = logprobs_and_entropies(hidden, torch.tensor([1]), lambda h: head(h, (1, 0)))
    assert logprobs.item() == pytest.approx(math.log(0.75)) and entropies.item() == pytest.approx(0.562335, abs=1e-6)
    logprobs, entropies = logprobs_and_entropies(hidden, torch.tensor([0]), lambda h: head(h, (1, 0)), temperature=0.5)
    assert logprobs.item() == pytest.approx(-math.log(10)) and entropies.item() == pytest.approx(0.325083, abs=1e-6)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 8, 100])
def test_any_chunk_size_gives_the_same_values_and_gradients(chunk_size: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    targets, coefficients = torch.randint(0, 11, (8,)), torch.randn(8, dtype=torch.float64)
    log_p = torch.log_softmax(hidden @ weight.T / 1.3, -1)
    expected = torch.autograd.grad((log_p[torch.arange(8), targets] * coefficients).sum(), (hidden, weight), retain_graph=True)
    sizes: list[int] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        sizes.append(len(states))
        return states @ weight.T

    logprobs, entropies = logprobs_and_entropies(hidden, targets, head, 1.3, chunk_size)
    torch.testing.assert_close(logprobs, log_p[torch.arange(8), targets])
    torch.testing.assert_close(entropies, -(log_p.exp() * log_p).sum(-1))
    gradients = torch.autograd.grad((logprobs * coefficients).sum(), (hidden, weight))
    torch.testing.assert_close(gradients, expected)
    assert max(sizes) <= chunk_size
    chunks = math.ceil(8 / chunk_size)
    assert len(sizes) == 2 * chunks - 1  # all but the last are computed again for the backward pass


def test_saved_memory_does_not_grow_with_tokens_times_vocabulary() -> None:
    saved: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    hidden, weight = torch.randn(64, 4, requires_grad=True), torch.randn(1000, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logprobs_and_entropies(hidden, torch.zeros(64, dtype=torch.int64), lambda h: h @ weight.T, 1.0, 8)
    assert sum(n for n in saved if n >= 1000 * 8) <= 2 * 1000 * 8  # one chunk's logits, not 64 * 1000
