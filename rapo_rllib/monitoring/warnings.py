"""Warnings of problems in a training, with their remedies.

result of every iteration --> WarningWatch --rules--> TrainingWarning (when it begins) --> terminal, summary.json, report
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.monitoring.warning_rules import RECENT, RULES, Past, Row

_PREFIXES = ("buffer/", "env_runners/", "learners/default_policy/", "fault_tolerance/", "rapo/", "sampling/", "evaluation/num_")


@dataclass(frozen=True)
class TrainingWarning:
    """One problem of a training, and its remedy.

    Example: ``TrainingWarning(3, "nothing_retrieved", "nothing was retrieved in 3 iterations: ...", "relax ...")``
    """

    iteration: int  # after which it held: in ``WarningWatch.begun`` the first, in ``holding`` the last
    name: str  # of the rule
    text: str  # with the numbers of that iteration
    advice: str

    def __str__(self) -> str:
        return f"{self.text} -> {self.advice}"


class WarningWatch:
    """Watch over one training. ``begun`` has each warning once, in order; ``holding`` those that hold after the last result."""

    def __init__(self) -> None:
        self.begun: list[TrainingWarning] = []
        self.holding: list[TrainingWarning] = []
        self._past = Past()
        self._recent: deque[Row] = deque(maxlen=2 * RECENT)

    def take(self, result: Mapping[str, Any], config: Mapping[str, Any]) -> list[TrainingWarning]:
        """Look at one more result.

        Args:
            result: of an iteration, nested as RLlib has it.
            config: that the iteration ran with; only ``num_hybrid`` and ``hybrid_groups`` are read.

        Returns:
            The warnings that hold for the first time.
        """
        row = _numbers(result, config)
        self._recent.append(row)
        self._past.take(list(self._recent))
        known = {warning.name for warning in self.begun}
        iteration = int(result.get("training_iteration") or 0)
        self.holding = [
            TrainingWarning(iteration, name, *found)
            for name, rule in RULES.items()
            if (found := rule(list(self._recent), self._past)) is not None
        ]
        new = [warning for warning in self.holding if warning.name not in known]
        self.begun += new
        return new


def warnings_of(results: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[TrainingWarning]:
    """Return all warnings of a training, each once, with the iteration after which it began to hold."""
    watch = WarningWatch()
    for result in results:
        watch.take(result, config)
    return watch.begun


def _numbers(result: Mapping[str, Any], config: Mapping[str, Any]) -> Row:
    row = {"num_hybrid": float(config.get("num_hybrid") or 0)}
    row["helps_who_failed"] = float(config.get("hybrid_groups") == "failed")
    for name, value in flattened(result).items():
        if name.startswith(_PREFIXES) and not isinstance(value, (str, bool)):
            with suppress(TypeError, ValueError):  # no number: a list, None
                row[name] = float(value)
    return {name: number for name, number in row.items() if math.isfinite(number)}
