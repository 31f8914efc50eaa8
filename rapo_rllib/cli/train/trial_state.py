"""State of one trial for a live display: its phase, its last results, and what it warns of."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rapo_rllib.cli.train.interrupt import result_value
from rapo_rllib.cli.train.time_left import TimeLeft, time_left

_PACE_OVER = 10  # results
_STATUS = {"PENDING": "waiting", "PAUSED": "paused", "TERMINATED": "ended", "ERROR": "failed"}
_STEPS = "num_env_steps_sampled_lifetime"


@dataclass
class TrialState:
    """One trial. Times are those of ``time.monotonic``."""

    label: str
    stop: Mapping[str, float]  # criteria
    end: float | None = None  # when the time of the whole experiment is spent
    status: str = "PENDING"
    said: str | None = None  # the phase, as the trial says it
    started: float | None = None
    ended: float | None = None
    last_result: float | None = None
    results: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=_PACE_OVER))
    accuracy: float | None = None  # the last held-out one; not every iteration evaluates

    def take_status(self, status: str) -> None:
        """As Tune has it; notes when the trial began to run and when it ended."""
        now = time.monotonic()
        if status == "RUNNING" and self.started is None:
            self.started = now
        if status in ("TERMINATED", "ERROR") and self.ended is None:
            self.ended = now
        self.status = status

    def take_phase(self, said: str | None) -> None:
        """As the trial says it, which for Tune is not running yet while it sets itself up."""
        if said is not None and self.started is None:
            self.started = time.monotonic()
        self.said = said

    def take_result(self, result: Mapping[str, Any]) -> None:
        """One more iteration ended."""
        self.results.append(result)
        self.last_result = time.monotonic()
        evaluated = _first(result, "evaluation/env_runners/accuracy", "evaluation/env_runners/episode_return_mean")
        self.accuracy = self.accuracy if evaluated is None else evaluated

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.status == "RUNNING"

    @property
    def speaks(self) -> bool:
        """Whether it may say its phase: it runs, or sets itself up."""
        return self.status in ("RUNNING", "PENDING")

    @property
    def phase(self) -> str:
        """In one word or two."""
        if self.speaks and self.said:
            return self.said
        if not self.running:
            return _STATUS.get(self.status, self.status.lower())
        return "training" if self.results else "starting"

    @property
    def iteration(self) -> str:
        """``3``, or ``3/10`` where the job says how many."""
        done = int(self._number("training_iteration") or 0)
        limit = self.stop.get("training_iteration")
        return f"{done}" if limit is None else f"{done}/{limit:g}"

    @property
    def seconds(self) -> float | None:
        """Since it began to run."""
        return None if self.started is None else (self.ended or time.monotonic()) - self.started

    @property
    def left(self) -> TimeLeft | None:
        """Until it ends, counted from now."""
        if not self.running:
            return None
        now = time.monotonic()
        found = time_left(list(self.results), self.stop)
        if found is not None and self.last_result is not None:
            found = TimeLeft(max(found.seconds - (now - self.last_result), 0.0), found.at_most)
        if self.end is None or (found is not None and found.seconds < self.end - now):
            return found
        return TimeLeft(max(self.end - now, 0.0), at_most=found is None and bool(self.stop))

    @property
    def speed(self) -> str | None:
        """Generated tokens a second of the last rollouts; of other algorithms, env steps a second of all time."""
        if (tokens := self._number("env_runners/tokens_per_s")) is not None:
            return f"{tokens:,.0f} tokens/s"
        if len(self.results) < 2:
            return None
        first, last = self.results[0], self.results[-1]
        steps = (result_value(last, _STEPS) or 0.0) - (result_value(first, _STEPS) or 0.0)
        seconds = (result_value(last, "time_total_s") or 0.0) - (result_value(first, "time_total_s") or 0.0)
        return f"{steps / seconds:,.0f} steps/s" if steps > 0 and seconds > 0 else None

    @property
    def reward(self) -> float | None:
        """Mean return of the last rollouts."""
        return self._number("env_runners/episode_return_mean")

    def _number(self, key: str) -> float | None:
        return result_value(self.results[-1], key) if self.results else None


def _first(result: Mapping[str, Any], *keys: str) -> float | None:
    return next((value for key in keys if (value := result_value(result, key)) is not None), None)
