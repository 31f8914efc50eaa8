"""How many retrievals fail over a whole training, on all env runners; too many stop it. Flow: ``algorithm.py`` counts here."""

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
    """

    def __init__(self, max_share: float, uri: str) -> None:
        self._max_share, self._uri = max_share, uri
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
                f"{self._max_share}: see that step_trace_buffer.uri = {self._uri!r} answers, then resume from a checkpoint"
            )
