"""Calls of several threads, answered together: what arrives while one batch is worked on is the next batch.

A lone call is not delayed, and a hundred at once cost two batches, not a hundred requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Query = TypeVar("Query")
Answer = TypeVar("Answer")


class Batched(Generic[Query, Answer]):
    """Calls ``answer_all`` with the queries of all waiting threads; equal queries once.

    Args:
        answer_all: queries ``[B]`` (hashable) to answers ``[B]``; never called by two threads at once.
        max_batch: most queries of one call.
    """

    def __init__(self, answer_all: Callable[[list[Query]], Sequence[Answer]], max_batch: int = 64) -> None:
        self._answer_all, self._max_batch = answer_all, max_batch
        self._waiting: list[tuple[Query, Future[Answer]]] = []
        self._lock = threading.Lock()  # of the list
        self._turn = threading.Lock()  # of answer_all

    def __call__(self, query: Query) -> Answer:
        """The answer to one query. What ``answer_all`` raises is raised in every thread of the batch."""
        future: Future[Answer] = Future()
        with self._lock:
            self._waiting.append((query, future))
        while not future.done():
            with self._turn:
                if not future.done():  # unanswered: this thread works for all waiting ones
                    self._work()
        return future.result()

    def _work(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
        queries = list(dict.fromkeys(query for query, _ in batch))
        try:
            answers = dict(zip(queries, self._answer_all(queries), strict=True))
        except BaseException as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for query, future in batch:
            future.set_result(answers[query])
