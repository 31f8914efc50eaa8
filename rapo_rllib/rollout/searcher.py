"""Batched searches for coroutines: requests during a running search are answered together by the next."""

from __future__ import annotations

import time
from concurrent.futures import Future

from rapo_rllib.errors import RetrievalError
from rapo_rllib.rollout.call_threads import CallThreads
from rapo_rllib.rollout.coroutines import Coroutines, result_of
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.types import HistoryQuery, RetrievedTrace

Asked = tuple[HistoryQuery, Future[RetrievedTrace | None]]


class Searcher:
    """Answers many coroutines by one search at a time, on a thread; ``stats`` counts queries and what came of them."""

    def __init__(self, retriever: Retriever | None, thread: CallThreads, stats: RolloutStats) -> None:
        self._retriever, self._thread, self._stats = retriever, thread, stats
        self._asked: list[Asked] = []
        self._searching = False

    async def search(self, query: HistoryQuery) -> RetrievedTrace | None:
        """Ask for a step trace; None: nothing suitable was found. ``RetrievalError`` if the buffer does not answer."""
        answer: Future[RetrievedTrace | None] = Future()
        self._asked.append((query, answer))
        return await result_of(answer)

    def start(self, coroutines: Coroutines) -> None:
        """Search for all waiting requests, unless a search is running."""
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
        except RetrievalError as error:  # the retriever has said so
            self._stats.retrieval_failures += len(asked)
            for _, answer in asked:
                answer.set_exception(error)
        else:
            self._stats.retrieval_empty += sum(trace is None for trace in found)
            for (_, answer), trace in zip(asked, found, strict=True):
                answer.set_result(trace)
        finally:
            self._thread.abandon(call)  # where the run has been given up
        self._stats.retrieval_s += time.monotonic() - started
        self._searching = False
