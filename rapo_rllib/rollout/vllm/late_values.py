"""Values that a device computes for running requests, copied so that reading them does not wait for a later step.

A read of a tensor on a GPU waits for all work that is queued there, also for the engine's next step. So each step's values are
copied to pinned memory right after they are computed, and an event marks the end of the copy. When a request ends, its last
token has come back from the device, so the copies of its steps are done; copies of later steps are read another time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

TokenRecord = tuple[float, float, int]  # entropy and logprob, nats; version of the weights
Place = tuple[str, int, int]  # name of the request, position in its response, version of the weights


@dataclass
class _Step:
    values: torch.Tensor  # [2, n] on the host
    places: Sequence[Place | None]  # None: the value will not be read
    event: Any | None  # of the copy; None on a CPU

    @property
    def is_done(self) -> bool:
        return self.event is None or bool(self.event.query())


class LateValues:
    """Values of steps by request and position."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque()  # the oldest first, as the device computes them
        self._records: dict[str, dict[int, TokenRecord]] = {}

    def add(self, values: torch.Tensor, places: list[Place]) -> None:
        """Keep a step's values, and start to copy them. values: ``[2, n]``, on any device; places: one for each of the n."""
        event = None
        if values.device.type != "cpu":
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._steps.append(_Step(values, places, event))

    def take(self, keys: Sequence[str], lengths: Sequence[int]) -> list[dict[int, TokenRecord]]:
        """Return the values of each finished request, by position, and forget them here.

        Args:
            keys: names of the requests.
            lengths: tokens of each response; the call waits for the device only while one of these tokens has no values.
        """
        while self._steps and self._steps[0].is_done:
            self._read(self._steps.popleft())
        while self._steps and any(self._lacks(key, length) for key, length in zip(keys, lengths, strict=True)):
            step = self._steps.popleft()
            step.event.synchronize()  # type: ignore[union-attr]  # one that is not done has an event
            self._read(step)
        gone = set(keys)
        for step in self._steps:  # tokens behind the last one, drawn before it was known to be the last
            step.places = [None if place is None or place[0] in gone else place for place in step.places]
        return [self._records.pop(key, {}) for key in keys]

    def _lacks(self, key: str, length: int) -> bool:
        return len(self._records.get(key, ())) < length

    def _read(self, step: _Step) -> None:
        entropies, logprobs = step.values.tolist()
        for place, entropy, logprob in zip(step.places, entropies, logprobs, strict=True):
            if place is not None:
                key, position, version = place
                self._records.setdefault(key, {})[position] = (entropy, logprob, version)
