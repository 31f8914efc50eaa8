"""Web search as a tool.

query -> cache -> (one request for equal searches at the same time) -> turn -> HTTP with retries -> results -> text
"""

from __future__ import annotations

import hashlib
import html
import json
import logging
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

from rapo_rllib.errors import ServiceError, ToolError
from rapo_rllib.services.http_json import JsonService, retry_after
from rapo_rllib.tools.base import ToolLimits, ToolResult
from rapo_rllib.web_search.options import SearchOptions
from rapo_rllib.web_search.providers import PROVIDERS, Hit, wait_for_windows
from rapo_rllib.web_search.store import SearchStore

logger = logging.getLogger(__name__)

RESULT_CHARS = 600  # of a result: title, address, and what is left for its snippet
_TITLE_CHARS = 150
_URL_CHARS = 300
# Tags that providers put around words. Other tags are text: results about HTML and C++ are full of them.
_MARKS = re.compile(r"</?(?:strong|em|b|i|u|mark|span|wbr|br|p)(?:\s[^<>]*)?/?>", re.IGNORECASE)
# Control characters, lone surrogates, and what is invisible or turns the direction of writing.
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_SPENT_S = 3600.0  # a service that asks for a longer wait has nothing left for this account
_PHASES = 3  # of one request, each within timeout_s: to connect, to begin its answer, to end it
_TEXTS = {
    "rate_limit": "SearchError: too many searches at the moment; this one was not made",
    "timeout": "SearchError: the search service took too long",
    "refused": "SearchError: the search service does not accept this query",
    "service": "SearchError: the search service failed",
}


class WebSearch(SearchOptions):
    """Tool that shows the policy the results of a web search. Thread-safe; its arguments are those of :class:`SearchOptions`.

    A failure is an observation with ``error`` "rate_limit", "timeout", "refused" (this query) or "service". ``ToolError`` means
    that no search can succeed: the key is refused, the account is used up, or the service has JSON answers switched off.
    """

    name: ClassVar[str] = "web_search"
    tag: ClassVar[str] = "search"
    description: ClassVar[str] = "Searches the web."
    argument: ClassVar[str] = "query"
    timeout_s: ClassVar[float] = 10.0  # of one request
    attempts: ClassVar[int] = 3  # requests of one search, while a failure may pass
    patience_s: ClassVar[float] = 60.0  # of one search, its turn included; no request begins later, as a step has a deadline

    def __post_init__(self) -> None:
        super().__post_init__()
        self.limits = ToolLimits(self.patience_s + _PHASES * self.timeout_s, self.top_k * (RESULT_CHARS + 2))
        self._provider = PROVIDERS[self.provider]
        self._store = SearchStore(None if self.cache is None else Path(self.cache).expanduser())
        wait = wait_for_windows if self._provider.windows else retry_after
        self._service = JsonService(self.provider, self.timeout_s, self.attempts, self.patience_s, self._wait_turn, wait)
        digest = hashlib.sha256((self.key() or "").encode()).hexdigest()[:16]  # equal keys share a limit; it is never read back
        self._queue = f"queue {self.provider} {self.address} {digest}"
        self._in_flight: dict[str, Future[list[Hit]]] = {}
        self._lock = threading.Lock()

    def run(self, input: str) -> ToolResult:
        """Search the web; raise ``ToolError`` if no search can succeed with these options."""
        started = time.monotonic()
        words = one_line(input).split(" ")[: self._provider.query_words]
        query = " ".join(words)[: self._provider.query_chars].strip()
        if not query:
            return ToolResult("(no query)", "empty", time.monotonic() - started)
        try:
            shown = observation(self._search(query)[: self.top_k])
        except ServiceError as error:
            return self._failed(error, time.monotonic() - started)
        return ToolResult(shown or "(no results)", None if shown else "no_results", time.monotonic() - started)

    def _search(self, query: str) -> list[Hit]:
        """Find the results in the cache, in an equal search that is running, or at the provider."""
        key = json.dumps([self.provider, self.address, query, self.top_k, self.params], sort_keys=True)
        with self._lock:
            future = self._in_flight.get(key)
            if future is None:
                mine = self._in_flight[key] = Future()
        if future is not None:
            return future.result()
        try:
            found = self._store.get(key)
            if found is None:
                found = self._fetch(query)
                self._store.put(key, found)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(found)
            return found
        finally:
            with self._lock:
                del self._in_flight[key]

    def _fetch(self, query: str) -> list[Hit]:
        request = self._provider.request({**self.params, **self._provider.parameters(query, self.top_k)}, self.key())
        answer = self._service.request(url=self.address + self._provider.path, **request)
        try:
            return self._provider.read(answer)
        except ValueError as error:
            raise ServiceError(f"{self.provider} answers with something unexpected: {error}") from error

    def _wait_turn(self, patience_s: float) -> None:
        wait_s = self._store.take_turn(self._queue, self.rate, patience_s)
        if wait_s > patience_s:
            raise ServiceError(f"no turn within {patience_s:.0f} s at {self.rate:g} requests a second", status=429)
        time.sleep(wait_s)

    def _failed(self, error: ServiceError, seconds: float) -> ToolResult:
        """Return the observation of a failed search; raise ``ToolError`` if all other searches would fail, too."""
        refusal = self._provider.refusal(error)
        if refusal is None and error.status == 429 and (error.retry_after_s or 0) >= _SPENT_S:
            refusal = "the account has no searches left"
        if refusal is not None:
            shown_key = f", key in {self.key_env}" if self.key_env else ""
            raise ToolError(f"web_search: {self.provider} ({self.address}{shown_key}): {refusal}") from error
        word = _error_word(error)
        logger.warning("web_search: %s (%s)", error, word)
        return ToolResult(_TEXTS[word], word, seconds)


def _error_word(error: ServiceError) -> str:
    if error.status == 429:
        return "rate_limit"
    if error.timed_out or error.status in (408, 504):
        return "timeout"
    return "refused" if error.status in (400, 414, 422) else "service"


def clean_line(text: str) -> str:
    r"""Clean a text to one plain line: no tags around words, no entities, no control characters, single spaces.

    >>> clean_line("<strong>Lyon</strong>&#x27;s  rivers:\n Rhône &amp; Saône")
    "Lyon's rivers: Rhône & Saône"
    """
    return one_line(html.unescape(_MARKS.sub("", text)))


def one_line(text: str) -> str:
    """Remove control characters from a text, and put single spaces for all white space."""
    return " ".join(_UNSEEN.sub("", text).split())


def observation(hits: Sequence[Hit]) -> str:
    """Render the results as the policy reads them: clean text, numbered, each in at most ``RESULT_CHARS`` characters.

    [1] Lyon - Wikipedia
    https://en.wikipedia.org/wiki/Lyon
    Lyon is the second-largest city of France ...
    """
    return "\n\n".join(_entry(number, hit) for number, hit in enumerate(hits, start=1))


def _entry(number: int, hit: Hit) -> str:
    url = _cut(one_line(hit.url).replace(" ", "%20"), _URL_CHARS)
    head = f"[{number}] {_cut(clean_line(hit.title) or '(no title)', _TITLE_CHARS)}\n{url}\n"
    return f"{head}{_cut(clean_line(hit.snippet), RESULT_CHARS - len(head))}".rstrip()


def _cut(text: str, most: int) -> str:
    """Cut a text to ``most`` characters; if something is missing, it ends in three dots."""
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."
