"""Count failed retrievals of a whole training, on all env runners, or of a model's evaluation; too many stop it.

Flow: ``algorithm/algorithm.py`` and ``agents/setup.py`` count here.
"""

from __future__ import annotations

from collections.abc import Iterable

from rapo_rllib.errors import RetrievalError
from rapo_rllib.rollout.stats import RolloutStats

MIN_QUERIES = 20  # a share of fewer says little
MAX_SHARE = 0.5  # with fewer than half of its retrievals a run is no longer what its keys say


class RetrievalFailures:
    """Counts on the driver, so that neither a restarted env runner forgets nor one that raises takes its trajectories along.

    Args:
        uri: of the buffer, for the message.
        then: what to do when it answers again, for the message.
    """

    def __init__(self, uri: str, then: str = "resume from a checkpoint") -> None:
        self._uri, self._then = uri, then
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
        if self.queries >= MIN_QUERIES and self.failures > MAX_SHARE * self.queries:
            raise RetrievalError(
                f"{self.failures} of {self.queries} retrievals failed, more than {MAX_SHARE:.0%}: see that "
                f"step_trace_buffer.uri = {self._uri!r} answers, then {self._then}"
            )
