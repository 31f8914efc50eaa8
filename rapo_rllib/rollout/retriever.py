"""Retrieval of step traces: when a history is answered by one, and by which. algorithm.md sections 3, 4.

A buffer that does not answer never becomes an empty ``<retrieve>``: that is said once, the trajectories go on without, and
above a share of failures training stops (``retrieval_failures.py``). Where nothing suitable is found,
``fallback_text`` may be shown instead (released code), and ``noise`` puts random traces in the place of found ones (an
ablation of the paper), of those that a search could have found.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import Protocol

from rapo_rllib.buffer.choices import select
from rapo_rllib.errors import RetrievalError
from rapo_rllib.types import FALLBACK, HistoryQuery, RetrievedTrace, StepTrace

logger = logging.getLogger(__name__)


class TraceSource(Protocol):
    """The part of ``StepTraceBuffer`` that a rollout reads."""

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        """For every query its nearest step traces, best first."""

    def random_traces(self, queries: Sequence[HistoryQuery], rngs: Sequence[random.Random]) -> list[StepTrace | None]:
        """For every query a step trace drawn with its generator from all that ``retrieve`` could find; None: there is none."""


class Retriever:
    """Answers a batch of histories, and says when the buffer ceases to answer and when it does again.

    Args:
        source: where step traces are.
        selection: which of the ``top_k`` is taken.
        top_k: nearest traces to look at.
        fallback_text: stands for a trace where nothing suitable was found; empty: nothing is shown.
        noise: chance that a query is answered by a random trace. Coin and draw depend on ``seed`` and the query alone, so
            neither on timing nor on simultaneous queries.
        seed: of the noise.
    """

    def __init__(
        self,
        source: TraceSource,
        *,
        selection: str,
        top_k: int,
        fallback_text: str = "",
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._source = source
        self._selection = selection
        self._top_k = top_k
        self._fallback = _fallback(fallback_text) if fallback_text else None
        self._noise = noise
        self._seed = seed
        self._unanswered = 0  # queries since the buffer has last answered
        self._silent_since = 0.0

    def __call__(self, queries: Sequence[HistoryQuery]) -> list[RetrievedTrace | None]:
        """One trace per query, or None where nothing suitable was found. Raises ``RetrievalError``."""
        try:
            answers = self._answers(queries)
        except RetrievalError as error:
            if not self._unanswered:
                self._silent_since = time.monotonic()
                logger.warning("the Step-Trace Buffer does not answer; trajectories go on on-policy until it does: %s", error)
            self._unanswered += len(queries)
            raise
        if self._unanswered:
            silent_s = time.monotonic() - self._silent_since
            logger.warning("the Step-Trace Buffer answers again, after %.0f s and %d lost queries", silent_s, self._unanswered)
            self._unanswered = 0
        return answers

    def _answers(self, queries: Sequence[HistoryQuery]) -> list[RetrievedTrace | None]:
        rngs = [random.Random(f"{self._seed}/{q.asker}/{q.question_id}/{q.history}") for q in queries]
        noisy = [rng.random() < self._noise for rng in rngs]
        wanted = [query for query, is_noisy in zip(queries, noisy, strict=True) if not is_noisy]
        found = iter(self._source.retrieve(wanted, self._top_k) if wanted else [])
        drawing = [(query, rng) for query, rng, is_noisy in zip(queries, rngs, noisy, strict=True) if is_noisy]
        asking, drawing_rngs = [query for query, _ in drawing], [rng for _, rng in drawing]
        drawn = iter(self._source.random_traces(asking, drawing_rngs) if drawing else [])
        return [self._shown(next(drawn)) if is_noisy else self._chosen(next(found)) for is_noisy in noisy]

    def _shown(self, drawn: StepTrace | None) -> RetrievedTrace | None:
        return self._fallback if drawn is None else RetrievedTrace(drawn, 0.0, noisy=True)

    def _chosen(self, hits: Sequence[RetrievedTrace]) -> RetrievedTrace | None:
        return select(hits, self._selection) or self._fallback


def _fallback(text: str) -> RetrievedTrace:
    return RetrievedTrace(StepTrace(FALLBACK, question="", history="", text=text, reward=0.0, source=FALLBACK), similarity=0.0)
