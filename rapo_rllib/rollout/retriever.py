"""Retrieval of step traces: whether a history gets a step trace, and which one. algorithm.md sections 3, 4.

If the buffer does not answer, the policy is not shown an empty ``<retrieve>``: one warning is logged, trajectories go on
without a step trace, and training stops above a share of failures. If nothing suitable is found, ``fallback_text`` may be shown
instead (released code). ``noise`` replaces found step traces by random ones, drawn from all that a search could have found (an
ablation of the paper).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from rapo_rllib.buffer.rows import select
from rapo_rllib.errors import RetrievalError
from rapo_rllib.rollout.call_threads import CallThreads
from rapo_rllib.rollout.coroutines import Coroutines, result_of
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.types import FALLBACK, HistoryQuery, RetrievedTrace, StepTrace

logger = logging.getLogger(__name__)


class TraceSource(Protocol):
    """The part of ``StepTraceBuffer`` that a rollout reads."""

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        """Find each query's nearest step traces, best first."""

    def random_traces(self, queries: Sequence[HistoryQuery], rngs: Sequence[random.Random]) -> list[StepTrace | None]:
        """Draw for each query, by its ``rngs``, one of all step traces that ``retrieve`` could find; None: there is none."""


class Retriever:
    """Function from a batch of histories to step traces; logs when the buffer stops answering, and when it answers again.

    Args:
        source: holds the step traces.
        selection: which of the ``top_k`` is taken.
        top_k: number of nearest step traces to choose from.
        fallback_text: shown in place of a step trace if nothing suitable was found; empty: nothing is shown.
        noise: chance that a query is answered by a random step trace. Coin and draw depend on ``seed`` and the query alone,
            not on timing or simultaneous queries.
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
        self._unanswered = 0  # queries that failed since the buffer last answered
        self._silent_since = 0.0

    def __call__(self, queries: Sequence[HistoryQuery]) -> list[RetrievedTrace | None]:
        """Find one step trace per query; None: nothing suitable was found. Raises ``RetrievalError`` if the buffer fails."""
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


MIN_QUERIES = 20  # a share of failures among fewer queries says little
MAX_SHARE = 0.5  # of failures: a run with fewer than half of its retrievals is no longer the run of its settings
PATIENCE_S = 900.0  # during training: a server that is gone for a while costs retrievals, and not the run


class RetrievalFailures:
    """Counts of failed retrievals on the driver: no env runner resets them by a restart, or loses trajectories by raising.

    Args:
        uri: of the buffer, for the message.
        then: what to do when the buffer answers again, for the message.
        patience_s: how long most queries of every rollout must fail; a rollout of which at most half fail resets the counts.
            None: all queries so far are judged together, after every rollout.
        clock: returns the time in seconds.
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
        """Count the queries and failures of a rollout.

        Raises:
            RetrievalError: most of the queries have failed for ``patience_s``, and at least 20 were made.
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


Asked = tuple[HistoryQuery, Future[RetrievedTrace | None]]


class Searcher:
    """The searches that coroutines await: one at a time, on a thread; ``stats`` counts the queries and their outcomes."""

    def __init__(self, retriever: Retriever | None, thread: CallThreads, stats: RolloutStats) -> None:
        self._retriever, self._thread, self._stats = retriever, thread, stats
        self._asked: list[Asked] = []
        self._searching = False

    async def search(self, query: HistoryQuery) -> RetrievedTrace | None:
        """Ask for a step trace; None: nothing suitable was found. Raises ``RetrievalError`` if the buffer fails."""
        answer: Future[RetrievedTrace | None] = Future()
        self._asked.append((query, answer))
        return await result_of(answer)

    def start(self, coroutines: Coroutines) -> None:
        """Start one search for all waiting queries, unless a search is running."""
        if self._asked and not self._searching:
            asked, self._asked = self._asked, []
            coroutines.run(self._answer(asked))

    async def _answer(self, asked: list[Asked]) -> None:
        assert self._retriever is not None
        started, self._searching = time.monotonic(), True
        self._stats.retrieval_queries += len(asked)
        call = self._thread.submit(self._retriever, [query for query, _ in asked])
        try:
            found = await result_of(call)
        except RetrievalError as error:  # the retriever has logged it
            self._stats.retrieval_failures += len(asked)
            for _, answer in asked:
                answer.set_exception(error)
        else:
            self._stats.retrieval_empty += sum(trace is None for trace in found)
            for (_, answer), trace in zip(asked, found, strict=True):
                answer.set_result(trace)
        finally:
            self._thread.abandon(call)  # if it still runs, since the run was given up
        self._stats.retrieval_s += time.monotonic() - started
        self._searching = False
