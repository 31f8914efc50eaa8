"""Seconds of an iteration, from how fast this machine multiplies matrices. A guess, for jobs without GPUs only.

    update  = 2 M T p / (r e)
    rollout = S (W / b + 2 M B / (r e')) + 2 M P / (r e')

``p``: 3 passes' worth, forward, and backward twice that; one more where all is computed again, one less with LoRA, whose frozen
weights have no gradients. ``S``: steps of ``B`` sequences, each of which reads all weights. ``M``: elements of the matrices,
``T``: tokens learned, ``P``: tokens of prompts, ``W``: bytes of the engine's weights; ``r``: operations a second of one large
product, timed here; ``b``: bytes a second. Source of 2 operations an element and token: "Scaling Laws for Neural Language
Models", arXiv 2001.08361, section 2.1 (attention's own are left out).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

LEARNER_SHARE, ENGINE_SHARE = 0.5, 0.2  # e, e': of r that learner and engine reach; guesses
FACTOR = 3  # either way: how far such a guess may be off
_SECONDS = 0.3  # of timing


@dataclass(frozen=True)
class Rates:
    """Of this machine."""

    operations: float  # a second, in the learner's dtype
    engine_operations: float
    bytes_read: float  # a second


@dataclass(frozen=True)
class Duration:
    """Seconds of one iteration."""

    rollout: float
    update: float

    @property
    def iteration(self) -> float:
        """Of both; rollouts beside updates (``max_staleness``) share the same cores."""
        return self.rollout + self.update


def measured_rates(shape: Any, learner_dtype: str, engine_dtype: str) -> Rates:
    """Time a matrix product of the model's size, and a sum over memory: under a second."""
    import torch

    with torch.no_grad():
        operations = {dtype: _operations(shape, getattr(torch, dtype)) for dtype in {learner_dtype, engine_dtype}}
        words = torch.ones(2**24)
        seconds, count = _timed(lambda: words.sum())
    return Rates(operations[learner_dtype], operations[engine_dtype], count * words.numel() * 4 / seconds)


def update_seconds(matrices: int, tokens: float, passes: int, operations: float) -> float:
    """``2 M T p / (r e)``.

    Example: 100 elements, 10 tokens, 3 passes' worth, 12,000 operations a second, half of which are reached: 1 s.
    """
    return 2 * matrices * tokens * passes / (operations * LEARNER_SHARE)


def rollout_seconds(matrices: int, weights: int, generated: float, prompt: float, batch: int, rates: Rates) -> float:
    """``S (W / b + 2 M B / (r e')) + 2 M P / (r e')`` with ``S = generated / batch``."""
    work = rates.engine_operations * ENGINE_SHARE
    steps = generated / max(1, batch)
    return steps * (weights / rates.bytes_read + 2 * matrices * batch / work) + 2 * matrices * prompt / work


def passes_worth(gradient_checkpointing: bool | str, lora: bool) -> int:
    """``p``."""
    return (2 if lora else 3) + (1 if gradient_checkpointing is True else 0)


def _operations(shape: Any, dtype: Any) -> float:
    import torch

    rows, inner, outer = 512, min(shape.hidden, 4096), min(shape.intermediate, 8192)
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, outer, dtype=dtype)
    seconds, count = _timed(lambda: left @ right)
    return count * 2 * rows * inner * outer / seconds


def _timed(work: Any) -> tuple[float, int]:
    work()
    start, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < _SECONDS:
        work()
        count += 1
    return seconds, count
