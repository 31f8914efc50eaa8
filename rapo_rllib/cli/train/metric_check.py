"""Whether results have what a scheduler compares. Tune's own check ends a run whose metric only comes with evaluations."""

from __future__ import annotations

import difflib
from typing import Any

from rapo_rllib.cli.train.interrupt import result_names

_EVALUATION = "evaluation/"


class MetricCheck:
    """Raises at the first result that should have the metric and has not; ``problem`` says so: Tune makes it a traceback."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self.problem: str | None = None

    def __call__(self, result: dict[str, Any]) -> None:
        """Called with every result, before the scheduler. Raises ``ValueError``."""
        names = result_names(result)
        evaluated = any(name.startswith(_EVALUATION) for name in names)
        if self._metric in names or (self._metric.startswith(_EVALUATION) and not evaluated):
            return
        near = difflib.get_close_matches(self._metric, names, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(sorted(names)[:20])}, ..."
        self.problem = f"scheduler.metric = {self._metric!r} is not among the results{hint}"
        raise ValueError(self.problem)
