"""Seconds of named parts of a pass, forward and backward, each without the parts inside it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

OTHER = "other"


class PartClock:
    """Counts the time of whichever part is open; outside all parts, of ``OTHER``.

    Example: a pass that is 1 s outside, 2 s in attention and 3 s outside again: ``{"other": 4, "attention": 2}``.

    Args:
        now: the clock, seconds; on a device that works asynchronously it waits for it.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._seconds: Counter[str] = Counter()
        self._open, self._now, self._since = [OTHER], now, now()

    def taken(self) -> dict[str, float]:
        """Seconds of each part since the last call."""
        self._count()
        found, self._seconds = dict(self._seconds), Counter()
        return found

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what runs inside as ``name``."""
        depth = len(self._open)
        self._enter(name)
        try:
            yield
        finally:  # also where checkpointing breaks off, having what it wants
            self._count()
            del self._open[depth:]

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a first tensor, or of ``hidden_states``; its forward and backward pass are counted as ``name``.

        Tensor and (first) result go through identities, whose backward passes come last and first of the function's own. What
        checkpointing computes again is a forward pass, wherever it comes.
        """

        def counted(*arguments: Any, **named: Any) -> Any:
            if arguments:
                arguments = (_Mark.apply(arguments[0], self._leave), *arguments[1:])
            else:
                named["hidden_states"] = _Mark.apply(named["hidden_states"], self._leave)
            with self.part(name):
                result = function(*arguments, **named)
            if isinstance(result, tuple):
                return _Mark.apply(result[0], lambda: self._enter(name)), *result[1:]
            return _Mark.apply(result, lambda: self._enter(name))

        return counted

    def _enter(self, name: str) -> None:
        self._count()
        self._open.append(name)

    def _leave(self) -> None:
        self._count()
        self._open.pop()

    def _count(self) -> None:
        now = self._now()
        self._seconds[self._open[-1]] += now - self._since
        self._since = now


class _Mark(torch.autograd.Function):
    """The tensor itself; its backward pass calls ``then``."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, then: Callable[[], None]) -> torch.Tensor:
        ctx.then = then
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.then()
        return gradients[0], None
