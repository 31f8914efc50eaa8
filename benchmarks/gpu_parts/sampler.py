"""A step of sampling at a large vocabulary: three ways to seed it, what recording adds, and what a read costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpu_parts.machine import Sizes, seconds, twice
from rapo_rllib.objective.entropy import entropy_and_logprobs
from rapo_rllib.rollout.vllm.seeded import row_keys, seeded_tokens, token_keys


def measured(sizes: Sizes) -> dict[str, Any]:
    """Milliseconds of a step, by batch; ``read_ms``: of a read of a finished request's values while a step is queued."""
    return {f"batch {batch}": _batch(batch, sizes) for batch in sizes.batches}


def _batch(batch: int, sizes: Sizes) -> dict[str, list[float]]:
    logits = torch.randn(batch, sizes.vocabulary, device=sizes.device)
    tokens = torch.zeros(batch, dtype=torch.int64, device=sizes.device)
    numbers = token_keys(sizes.vocabulary).to(sizes.device)
    keys = row_keys(range(batch), [0] * batch).to(sizes.device)
    draw: Callable[..., Any] = seeded_tokens
    measure: Callable[..., Any] = entropy_and_logprobs
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: _plain(logits),
        "a generator for each row": lambda: _by_row(logits),
        "hash": lambda: draw(logits, keys, numbers),
        "entropies and logprobs": lambda: measure(logits, tokens),
    }
    if sizes.device == "cuda":
        compiled_draw, compiled_measure = (torch.compile(work, dynamic=True) for work in (draw, measure))
        ways["hash, compiled"] = lambda: compiled_draw(logits, keys, numbers)
        ways["entropies and logprobs, compiled"] = lambda: compiled_measure(logits, tokens)
    found = {
        f"{name}, ms": twice(lambda work=work: 1e3 * seconds(work, sizes.device, sizes.steps)) for name, work in ways.items()
    }
    if sizes.device == "cuda":
        found["compiled, it draws the same"] = bool((compiled_draw(logits, keys, numbers) == draw(logits, keys, numbers)).all())
    return {**found, **_reads(logits, sizes)}


def _plain(logits: torch.Tensor) -> torch.Tensor:
    """Sample as vLLM does without seeds."""
    probs = torch.softmax(logits, -1, dtype=torch.float32)
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(-1)


def _by_row(logits: torch.Tensor) -> torch.Tensor:
    """Sample as vLLM does with a seed for each request, a generator made anew for each token."""
    probs = torch.softmax(logits, -1, dtype=torch.float32)
    noise = torch.empty_like(probs)
    for index in range(len(logits)):
        generator = torch.Generator(logits.device)
        generator.manual_seed(index)
        noise[index].exponential_(generator=generator)
    return probs.div_(noise).argmax(-1)


def _reads(logits: torch.Tensor, sizes: Sizes) -> dict[str, list[float]]:
    """Read the values of a step while the next one is queued: by ``tolist()``, and from pinned memory behind an event."""
    if sizes.device != "cuda":
        return {}
    values = torch.zeros(2, len(logits), device=sizes.device)
    pinned, event = torch.empty(values.shape, pin_memory=True), torch.cuda.Event()

    def by_tolist() -> None:
        _plain(logits)  # the next step
        values.tolist()

    def by_event() -> None:
        pinned.copy_(values, non_blocking=True)
        event.record()
        _plain(logits)
        event.synchronize()
        pinned.tolist()

    return {
        "step and tolist(), ms": twice(lambda: 1e3 * seconds(by_tolist, sizes.device, sizes.steps)),
        "step and copy behind an event, ms": twice(lambda: 1e3 * seconds(by_event, sizes.device, sizes.steps)),
    }
