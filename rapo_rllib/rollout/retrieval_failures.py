"""Count failed retrievals of a whole training, on all env runners, or of a model's evaluation; too many stop it.

Flow: ``algorithm/algorithm.py`` and ``agents/setup.py`` count here.
"""

from __future__ import annotations

from collections.abc import Iterable

from rapo_rllib.errors import RetrievalError
from rapo_rllib.rollout.stats import RolloutStats

MIN_QUERIES = 20  # a share of fewer says little


class RetrievalFailures:
    """Counts on the driver, so that neither a restarted env runner forgets nor one that raises takes its trajectories along.

    Args:
        max_share: of all queries that may fail.
        uri: of the buffer, for the message.
        then: what to do when it answers again, for the message.
    """

    def __init__(self, max_share: float, uri: str, then: str = "resume from a checkpoint") -> None:
        self._max_share, self._uri, self._then = max_share, uri, then
        self.queries = 0
        self.failures = 0

    def add(self, stats: Iterable[RolloutStats]) -> None:
        """Count those of a rollout.

        Raises:
            RetrievalError: too large a share of all queries has failed (and at least 20 were made).
        """
        for each in stats:
            self.queries += each.retrieval_queries
            self.failures += each.retrieval_failures
        if self.queries >= MIN_QUERIES and self.failures > self._max_share * self.queries:
            raise RetrievalError(
                f"{self.failures} of {self.queries} retrievals failed, more than max_retrieval_failure_share = "
                f"{self._max_share}: see that step_trace_buffer.uri = {self._uri!r} answers, then {self._then}"
            )
