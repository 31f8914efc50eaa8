"""Engines in simulated time: all running sequences of one get a token in each of its steps, and a step takes longer for more.

An event is the next thing that happens to an engine; between two events nothing changes. Nothing here is a measurement.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Speed:
    """Seconds of an engine's step: ``base + per_sequence * n`` for n running sequences, of which at most ``capacity``."""

    base_s: float
    per_sequence_s: float
    capacity: int


@dataclass
class SimulatedEngine:
    """Sequences that run, and those that wait for room."""

    speed: Speed
    clock: float = 0.0  # tokens that each running sequence has been given, since the beginning
    at: float = 0.0  # simulated seconds at which ``clock`` was right
    paused: bool = False
    busy_s: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)  # heap of (clock at which it ends, sequence)
    waiting: deque[tuple[int, int]] = field(default_factory=deque)  # sequence, tokens

    @property
    def load(self) -> int:
        """Sequences that run or wait."""
        return len(self.running) + len(self.waiting)

    @property
    def step_s(self) -> float:
        """Seconds of a token for all that run."""
        return self.speed.base_s + self.speed.per_sequence_s * len(self.running)

    def go_to(self, now: float) -> None:
        """Let time go by."""
        if self.running and not self.paused:
            self.clock += (now - self.at) / self.step_s
            self.busy_s += now - self.at
        self.at = now

    def submit(self, sequence: int, tokens: int) -> None:
        """Generate; called at ``at``."""
        self.waiting.append((sequence, tokens))
        self._fill()

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.speed.capacity:
            sequence, tokens = self.waiting.popleft()
            heapq.heappush(self.running, (self.clock + tokens, sequence))

    def next_event(self) -> float | None:
        """When the next sequence ends, if nothing else happens; None: none runs."""
        if self.paused or not self.running:
            return None
        return self.at + max(self.running[0][0] - self.clock, 0.0) * self.step_s

    def finished(self) -> list[int]:
        """Sequences that have ended at ``at``."""
        ended = []
        while self.running and self.running[0][0] <= self.clock + 1e-6:
            ended.append(heapq.heappop(self.running)[1])
        self._fill()
        return ended

    def forget(self, sequences: set[int]) -> None:
        """Give sequences up."""
        self.running = [item for item in self.running if item[1] not in sequences]
        heapq.heapify(self.running)
        self.waiting = deque(item for item in self.waiting if item[0] not in sequences)
        self._fill()
