"""Lengths of trajectories as a real training wrote them: transcripts to steps and seconds of tools."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

Recorded = list[tuple[int, float]]  # of one trajectory: tokens of each step, and seconds of the tool behind it


def recorded(files: Iterable[Path]) -> list[Recorded]:
    """Every trajectory of transcripts (``transcripts: true``) that generated anything."""
    found = []
    for file in sorted(files):
        for line in file.read_text(encoding="utf-8").splitlines():
            steps = [(step["stop"] - step["start"], step["tool_seconds"]) for step in json.loads(line)["steps"]]
            found.append([step for step in steps if step[0]])
    return [steps for steps in found if steps]


class Drawn:
    """Trajectories drawn from recorded ones.

    Args:
        trajectories: of a training.
        times: what lengths are multiplied by; the shape of their distribution stays.
        slow_share: of tool calls that take ``slow_s`` more.
        slow_s: seconds.
        seed: of the draws; trajectory ``i`` is the same in every schedule.
    """

    def __init__(self, trajectories: list[Recorded], times: float, slow_share: float, slow_s: float, seed: int) -> None:
        self._trajectories, self._times, self._seed = trajectories, times, seed
        self._slow_share, self._slow_s = slow_share, slow_s

    def steps(self, name: str) -> Recorded:
        """Tokens and seconds of the tool of each step of the trajectory called so."""
        rng = random.Random(f"{self._seed}/{name}")
        drawn = rng.choice(self._trajectories)
        slow = [self._slow_s if rng.random() < self._slow_share else 0.0 for _ in drawn[1:]]
        tools = [seconds + more for (_, seconds), more in zip(drawn, slow, strict=False)]
        tokens = [max(1, round(tokens * self._times)) for tokens, _ in drawn]
        return list(zip(tokens, [*tools, 0.0], strict=True))
