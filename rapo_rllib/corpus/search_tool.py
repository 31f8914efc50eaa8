"""The search tool: a query between ``<search>`` and ``</search>``, passages of a corpus as the observation.

    env_config.tools: [{name: search, options: {uri: ./corpus.db, top_k: 3}}]

All trajectories of a process share one object; queries that come at the same time are embedded and searched together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from rapo_rllib.corpus.collection import CorpusPlace, Hit, PassageCollection, check_mode
from rapo_rllib.errors import RetrievalError, ToolError
from rapo_rllib.milvus.lite.handle import BUSY_S, PATIENCE_S
from rapo_rllib.tools.base import ToolLimits, ToolResult
from rapo_rllib.validation import MOST_FOUND

Query = TypeVar("Query")
Answer = TypeVar("Answer")


class Batched(Generic[Query, Answer]):
    """Batches of the queries of waiting threads, each answered by one call of ``answer_all``; equal queries are asked once.

    Args:
        answer_all: queries ``[B]`` (hashable) to answers ``[B]``; never called by two threads at once.
        max_batch: largest number of waiting queries that one call answers.
    """

    def __init__(self, answer_all: Callable[[list[Query]], Sequence[Answer]], max_batch: int = 64) -> None:
        self._answer_all, self._max_batch = answer_all, max_batch
        self._waiting: list[tuple[Query, Future[Answer]]] = []
        self._lock = threading.Lock()  # of the list
        self._turn = threading.Lock()  # of answer_all

    def __call__(self, query: Query) -> Answer:
        """Return the answer to one query. An error of ``answer_all`` is raised in every thread of the batch."""
        future: Future[Answer] = Future()
        with self._lock:
            self._waiting.append((query, future))
        while not future.done():
            with self._turn:
                if not future.done():  # no answer yet: this thread answers a batch of the waiting queries
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


logger = logging.getLogger(__name__)

PREFIX = "env_config.tools: search option "
_MOST = {"top_k": MOST_FOUND, "max_chars": 25_000}
TIMEOUT_S = 10.0  # of one request to Milvus
MAX_QUERY_CHARS = 1000  # the rest of a query is cut off
MAX_FAILURES = 20  # calls in a row that Milvus did not answer; then it counts as gone


class CorpusSearch:
    """The tool that searches in a collection made by ``rllib corpus build``.

    Args:
        uri: a Milvus Lite path ending in .db, or http(s)://host:port[/database].
        collection: name of the Milvus collection.
        top_k: passages of one answer.
        mode: ``dense``, ``bm25``, or ``hybrid`` (both rankings fused).
        max_chars: of a passage's text; the rest is cut.

    Raises:
        ValueError: a value is invalid; the collection is missing or not complete; Milvus does not answer.
    """

    name = "search"
    tag = "search"
    description = "Searches for passages that answer a query."
    argument = "query"

    def __init__(
        self,
        uri: str = "./corpus.db",
        collection: str = "passages",
        top_k: int = 3,
        mode: str = "hybrid",
        max_chars: int = 1000,
    ) -> None:
        for key, value in {"top_k": top_k, "max_chars": max_chars}.items():
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST[key]:
                raise ValueError(f"{PREFIX}{key} = {value!r}: must be a whole number, 1 or more, at most {_MOST[key]}")
        check_mode(mode, f"{PREFIX}mode")
        self.collection = PassageCollection(CorpusPlace(uri, collection, TIMEOUT_S, prefix=PREFIX))
        self._top_k, self._max_chars, self._mode = top_k, max_chars, mode
        self._check_complete()
        self._search = Batched(self._search_all)
        self._failures = 0
        self._lock = threading.Lock()
        # longer than a search may take: a batch waits for the batch before it, and the owner of a Lite path may start again
        self.limits = ToolLimits(2 * max(TIMEOUT_S, BUSY_S, PATIENCE_S) + TIMEOUT_S, top_k * (max_chars + 1000))

    def run(self, input: str) -> ToolResult:
        """Find the best passages and number them. Raises ``ToolError`` after ``MAX_FAILURES`` unanswered calls in a row."""
        query = " ".join(input.encode("utf-8", "replace").decode().split())[:MAX_QUERY_CHARS].strip()
        if not query:
            return ToolResult("(no query)", "empty")
        try:
            hits = self._search(query)
        except RetrievalError as error:
            return self._unavailable(error)
        self._failures = 0
        if not hits:
            return ToolResult("(no results)", "no_results")
        return ToolResult("\n\n".join(self._shown(number, hit) for number, hit in enumerate(hits, start=1)))

    def close(self) -> None:
        """Disconnect."""
        self.collection.close()

    def _check_complete(self) -> None:
        try:
            facts = self.collection.facts()
        except RetrievalError as error:
            raise ValueError(f"{PREFIX}uri = {self.collection.place.uri!r}: {error}") from error
        if facts["begun"] or not facts["files"]:
            where, files = f"collection {self.collection.where}", ", ".join(facts["begun"]) or "its file"
            raise ValueError(f"{PREFIX}collection: {where} is not complete; run `rllib corpus build` again for {files}")

    def _search_all(self, queries: list[str]) -> Sequence[list[Hit]]:
        return self.collection.search(queries, self._top_k, self._mode)

    def _unavailable(self, error: RetrievalError) -> ToolResult:
        with self._lock:
            self._failures += 1
            failures = self._failures
        if failures >= MAX_FAILURES:
            raise ToolError(f"tool search: {failures} calls in a row were not answered: {error}") from error
        logger.warning("tool search: %s", error)
        return ToolResult("SearchError: the search service failed", "service")

    def _shown(self, number: int, hit: Hit) -> str:
        title, text = hit.passage.title, hit.passage.text
        if len(text) > self._max_chars:
            text = text[: self._max_chars].rstrip() + " ..."
        return f"[{number}] {title}\n{text}" if title else f"[{number}] {text}"
