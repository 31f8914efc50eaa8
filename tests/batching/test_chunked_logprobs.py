"""Chunks give what the whole gives, and logits of more than one chunk never exist together."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rapo_rllib.batching.chunked_logprobs import ELEMENTS_AT_ONCE_CPU, logprobs_and_entropies


def test_hand_worked_distribution() -> None:
    # logits [0, ln 3] -> p = [1/4, 3/4]: log p(1) = ln 3/4; H = 1/4 ln 4 + 3/4 ln 4/3 = 0.562335
    # logits [0, ln 9] -> p = [1/10, 9/10]: log p(0) = -ln 10; H = 0.1 ln 10 + 0.9 ln 10/9 = 0.325083
    hidden = torch.tensor([[math.log(3.0)]])
    head = torch.nn.functional.pad
    logprobs, entropies = logprobs_and_entropies(hidden, torch.tensor([1]), lambda h: head(h, (1, 0)))
    assert logprobs.item() == pytest.approx(math.log(0.75)) and entropies.item() == pytest.approx(0.562335, abs=1e-6)
    logprobs, entropies = logprobs_and_entropies(hidden, torch.tensor([0]), lambda h: head(2 * h, (1, 0)))
    assert logprobs.item() == pytest.approx(-math.log(10)) and entropies.item() == pytest.approx(0.325083, abs=1e-6)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 8, 100])
@pytest.mark.parametrize("rows_at_once", [1, 2, 100])
def test_any_chunk_size_gives_the_same_values_and_gradients(
    chunk_size: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rapo_rllib.batching.chunked_logprobs.ELEMENTS_AT_ONCE_CPU", rows_at_once * 11)
    torch.manual_seed(0)
    hidden = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    targets, coefficients = torch.randint(0, 11, (8,)), torch.randn(8, dtype=torch.float64)
    log_p = torch.log_softmax(hidden @ weight.T / 1.3, -1)
    expected = torch.autograd.grad((log_p[torch.arange(8), targets] * coefficients).sum(), (hidden, weight), retain_graph=True)
    sizes: list[int] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        sizes.append(len(states))
        return states @ weight.T / 1.3

    logprobs, entropies = logprobs_and_entropies(hidden, targets, head, chunk_size)
    torch.testing.assert_close(logprobs, log_p[torch.arange(8), targets])
    torch.testing.assert_close(entropies, -(log_p.exp() * log_p).sum(-1))
    gradients = torch.autograd.grad((logprobs * coefficients).sum(), (hidden, weight))
    torch.testing.assert_close(gradients, expected)
    assert max(sizes) <= chunk_size
    chunks = math.ceil(8 / chunk_size)
    assert len(sizes) == 2 * chunks - 1  # all but the last are computed again for the backward pass


def test_logits_of_low_precision_are_normalised_in_float32() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 8, dtype=torch.bfloat16), torch.randn(500, 8, dtype=torch.bfloat16)
    targets = torch.arange(6)
    logprobs, entropies = logprobs_and_entropies(hidden, targets, lambda states: states @ weight.T)
    log_p = torch.log_softmax((hidden @ weight.T).double(), -1)
    torch.testing.assert_close(logprobs, log_p[torch.arange(6), targets].float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies, -(log_p.exp() * log_p).sum(-1).float(), rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_sure_token_is_not_rounded_away() -> None:
    """1 - p = 0.001 is below the step of bfloat16 at 1: both are to be added before they are rounded."""
    logits = torch.tensor([[0.0, -math.log(999.0)]], dtype=torch.bfloat16, requires_grad=True)
    logprobs, _ = logprobs_and_entropies(logits, torch.tensor([0]), torch.clone)
    (gradient,) = torch.autograd.grad(logprobs.sum(), logits)
    p = torch.softmax(logits.detach().double(), -1)[0, 0].item()
    assert gradient[0].tolist() == pytest.approx([1 - p, p - 1], rel=2**-8)


class Allocations(TorchDispatchMode):
    """The bytes of the storages that tensors made in here hold, and the most that were held together."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}
        self.peak = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return output

    def _note(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.held:
            self.held[storage._cdata] = storage.nbytes()
            weakref.finalize(storage, self.held.pop, storage._cdata, None)
        self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, sum(self.held.values()))


@pytest.mark.parametrize(("tokens", "vocabulary"), [(64, 1000), (512, 1000), (64, 8000)])
def test_memory_does_not_grow_with_tokens_times_vocabulary(tokens: int, vocabulary: int) -> None:
    """Forward and backward hold at most two chunks' logits at a time (values and gradients), besides what is linear."""
    chunk, width = 8, 4
    hidden, weight = torch.randn(tokens, width, requires_grad=True), torch.randn(vocabulary, width, requires_grad=True)
    with Allocations() as allocations:
        targets = torch.zeros(tokens, dtype=torch.int64)
        logprobs, _ = logprobs_and_entropies(hidden, targets, lambda states: states @ weight.T / 0.7, chunk)
        logprobs.sum().backward()
    weights, states, logits = 4 * vocabulary * width, 4 * tokens * width, 4 * chunk * vocabulary
    assert allocations.largest == max(logits, weights)
    assert logits <= allocations.peak < 4 * logits + 4 * weights + 30 * states


def test_gradients_of_logits_take_their_place() -> None:
    hidden, weight = torch.randn(256, 4, requires_grad=True), torch.randn(20_000, 4, requires_grad=True)
    with Allocations() as allocations:
        logprobs, _ = logprobs_and_entropies(hidden, torch.zeros(256, dtype=torch.int64), lambda states: states @ weight.T)
        logprobs.sum().backward()
    logits = 4 * 256 * 20_000
    slices = 3 * 4 * ELEMENTS_AT_ONCE_CPU  # in float32
    assert logits <= allocations.peak < logits + slices + 4 * 4 * 20_000 * 3


@pytest.mark.parametrize("count", [0, 1, 5])
def test_autocast_rounds_no_entropy(count: int) -> None:
    hidden, head = torch.randn(count, 8, requires_grad=True), torch.nn.Linear(8, 5000, bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        logprobs, entropies = logprobs_and_entropies(hidden, torch.zeros(count, dtype=torch.int64), head)
        logits = head(hidden).detach().float()
    expected = torch.distributions.Categorical(logits=logits, validate_args=False)  # of no tokens, too
    torch.testing.assert_close(entropies, expected.entropy(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logprobs.detach(), expected.logits[:, 0], rtol=1e-5, atol=1e-5)
    logprobs.sum().backward()
    assert hidden.grad is not None and hidden.grad.shape == hidden.shape
