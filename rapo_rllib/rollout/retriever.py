"""When a history may be answered by a step trace, and by which one. ALGORITHM sections 3, 4.

A buffer that does not answer never becomes an empty ``<retrieve>``: it is counted, the trajectory goes on without, and above a
share of failures training stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rapo_rllib.buffer.store import select
from rapo_rllib.errors import RetrievalError
from rapo_rllib.types import HistoryQuery, RetrievedTrace


class TraceSource(Protocol):
    """The part of ``StepTraceBuffer`` that a rollout reads."""

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int | None = None) -> list[list[RetrievedTrace]]:
        """For every query its nearest step traces, best first."""


class Retriever:
    """Answers a batch of histories, and keeps count of failures over the whole training."""

    def __init__(self, source: TraceSource, *, selection: str, top_k: int, max_failure_share: float) -> None:
        self._source = source
        self._selection = selection
        self._top_k = top_k
        self._max_failure_share = max_failure_share
        self.queries = 0
        self.failures = 0

    def __call__(self, queries: Sequence[HistoryQuery]) -> list[RetrievedTrace | None]:
        """One trace per query, or None where nothing suitable was found. Raises ``RetrievalError``."""
        self.queries += len(queries)
        try:
            return [select(hits, self._selection) for hits in self._source.retrieve(queries, self._top_k)]
        except RetrievalError:
            self.failures += len(queries)
            raise

    def check_failure_share(self) -> None:
        """Raise ``RetrievalError`` when too large a share of all queries has failed (and at least 20 were made)."""
        if self.queries >= 20 and self.failures > self._max_failure_share * self.queries:
            raise RetrievalError(
                f"{self.failures} of {self.queries} retrievals failed, more than max_retrieval_failure_share = "
                f"{self._max_failure_share}: is the Milvus server of step_trace_buffer.uri still running?"
            )
