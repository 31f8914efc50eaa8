"""Draws lengths of steps and times of tool calls once, so that every rollout meets the same work."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True)
class Plan:
    """Lengths, numbers of tool calls and latencies, each a function of the trajectory's name and a counter alone.

    Example: ``Plan(step_tokens=(8, 40), calls=(3, 5)).tokens("q0/0", 2)`` is the length of the third step of ``q0/0``.
    """

    seed: int = 0
    step_tokens: tuple[int, int] = (8, 40)  # fewest and most generated tokens of a step, uniform
    calls: tuple[int, int] = (0, 0)  # fewest and most tool calls of a trajectory, uniform
    latency_median_s: float = 0.3  # of a tool call, log-normal
    latency_p99_s: float = 5.0

    def tokens(self, trajectory: str, step: int) -> int:
        """Generated tokens of a step."""
        return self._random("tokens", trajectory, step).randint(*self.step_tokens)

    def num_calls(self, trajectory: str) -> int:
        """Tool calls of a trajectory; it has one step more."""
        return self._random("calls", trajectory, 0).randint(*self.calls)

    def latency_s(self, trajectory: str, call: int) -> float:
        """Seconds that a tool call takes."""
        sigma = math.log(self.latency_p99_s / self.latency_median_s) / NormalDist().inv_cdf(0.99)
        return self._random("latency", trajectory, call).lognormvariate(math.log(self.latency_median_s), sigma)

    def all_tokens(self, trajectory: str) -> int:
        """Generated tokens of a whole trajectory."""
        return sum(self.tokens(trajectory, step) for step in range(self.num_calls(trajectory) + 1))

    def _random(self, what: str, trajectory: str, counter: int) -> random.Random:
        return random.Random(f"{self.seed}/{what}/{trajectory}/{counter}")
