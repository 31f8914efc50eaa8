"""Count failed retrievals of a training, on all env runners, or of a model's evaluation; too many stop it.

Flow: ``algorithm/algorithm.py`` and ``agents/setup.py`` count here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rapo_rllib.errors import RetrievalError
from rapo_rllib.rollout.stats import RolloutStats

MIN_QUERIES = 20  # a share of fewer says little
MAX_SHARE = 0.5  # with fewer than half of its retrievals a run is no longer what its keys say
PATIENCE_S = 900.0  # of a training: a server that is gone for a while costs retrievals, and not the run


class RetrievalFailures:
    """Counts on the driver, so that neither a restarted env runner forgets nor one that raises takes its trajectories along.

    Args:
        uri: of the buffer, for the message.
        then: what to do when it answers again, for the message.
        patience_s: how long most queries of every rollout must fail; one of which most do not ends the count. None: at all that
            was asked, at once.
        clock: seconds.
    """

    def __init__(
        self,
        uri: str,
        then: str = "resume from a checkpoint",
        patience_s: float | None = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uri, self._then, self._patience_s, self._clock = uri, then, patience_s, clock
        self._queries = self._failures = 0
        self._since: float | None = None  # the end of the first rollout that is counted

    def add(self, stats: Iterable[RolloutStats]) -> None:
        """Count those of a rollout.

        Raises:
            RetrievalError: most of the queries have failed for so long (and at least 20 were made).
        """
        counted, now = list(stats), self._clock()
        queries, failures = sum(s.retrieval_queries for s in counted), sum(s.retrieval_failures for s in counted)
        if self._patience_s is not None and failures <= MAX_SHARE * queries:
            if queries:
                self._queries, self._failures, self._since = 0, 0, None
            return
        self._queries, self._failures = self._queries + queries, self._failures + failures
        self._since = now if self._since is None else self._since
        if now - self._since < (self._patience_s or 0.0):
            return
        if self._queries >= MIN_QUERIES and self._failures > MAX_SHARE * self._queries:
            raise RetrievalError(
                f"{self._failures} of {self._queries} retrievals failed, more than {MAX_SHARE:.0%}: see that "
                f"step_trace_buffer.uri = {self._uri!r} answers, then {self._then}"
            )
