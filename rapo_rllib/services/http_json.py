"""JSON requests to web services, with retries: used by web search and the LLM judge."""

from __future__ import annotations

import json
import logging
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from rapo_rllib.errors import ServiceError

logger = logging.getLogger(__name__)

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})  # status codes of failures that pass
MAX_BYTES = 16 * 2**20
MAX_WAIT_S = 30.0  # between two tries, unless the service asks for more
_KEPT_BYTES = 4096  # of the body of an error response
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)  # trajectories do not wait for each other's calls


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read the seconds of a ``Retry-After`` header; None without one, or if it holds a date: then the backoff decides."""
    seconds = headers.get("retry-after", "").strip()
    return float(seconds) if seconds.isascii() and seconds.isdigit() else None


class JsonService:
    """A web service that answers in JSON. Thread-safe; connections are kept.

    Args:
        name: of the service, for messages.
        timeout_s: of one try.
        attempts: tries of one request.
        patience_s: no further try begins after so many seconds; a service that asks for a longer wait is given up at once.
        before_try: called before every try with the seconds of patience that are left. A rate limit waits there for its
            turn, or raises a ``ServiceError`` if the turn would come too late.
        wait_asked: reads from the headers of an error how many seconds the service asks to wait; None: it does not ask.
    """

    def __init__(
        self,
        name: str,
        timeout_s: float = 10.0,
        attempts: int = 3,
        patience_s: float = 60.0,
        before_try: Callable[[float], None] | None = None,
        wait_asked: Callable[[Mapping[str, str]], float | None] = retry_after,
    ) -> None:
        self.name, self._timeout_s, self._attempts, self._patience_s = name, timeout_s, attempts, patience_s
        self._before_try, self._wait_asked = before_try, wait_asked
        self._client = httpx.Client(timeout=timeout_s, limits=_LIMITS)
        weakref.finalize(self, self._client.close)

    def request(self, method: str, url: str, **arguments: Any) -> Any:
        """Send a request and return the parsed answer; ``arguments`` are httpx's (``params``, ``json``, ``headers``).

        Raises:
            ServiceError: refused, or unreachable, too slow or without JSON in all tries. The message names no header or query.
        """
        retrying = Retrying(
            stop=stop_after_attempt(self._attempts) | stop_before_delay(self._patience_s),
            wait=_wait,
            retry=retry_if_exception(lambda error: isinstance(error, ServiceError) and error.passes),
            reraise=True,
        )
        return retrying(self._once, method, url, arguments, time.monotonic() + self._patience_s)

    def close(self) -> None:
        """Close the connections for good; they are also closed when this object is garbage collected."""
        self._client.close()

    def _once(self, method: str, url: str, arguments: Mapping[str, Any], patience_ends: float) -> Any:
        if self._before_try is not None:
            self._before_try(patience_ends - time.monotonic())
        try:
            with self._client.stream(method, url, **arguments) as response:
                body = self._body(response)
        except httpx.HTTPError as error:  # without the address: it may carry a key
            problem = ServiceError(f"{self.name} does not answer ({type(error).__name__})", passes=True)
            problem.timed_out = isinstance(error, httpx.TimeoutException)
            raise problem from None
        if response.status_code >= 400:
            status, after = response.status_code, self._wait_asked(response.headers)
            problem = ServiceError(f"{self.name} answers with status {status}", status, status in BUSY, after)
            problem.body = body[:_KEPT_BYTES]
            raise problem
        try:
            return json.loads(body)
        except (ValueError, RecursionError):  # bad UTF-8 and endless nesting included
            raise ServiceError(
                f"{self.name} answers with something that is not JSON", response.status_code, passes=True
            ) from None

    def _body(self, response: httpx.Response) -> bytes:
        """Read the whole body within the timeout of one try, since httpx's own timeout begins anew with every chunk."""
        body, deadline = b"", time.monotonic() + self._timeout_s
        for chunk in response.iter_bytes():
            body += chunk
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("")
            if len(body) > MAX_BYTES:
                raise ServiceError(f"{self.name} answers with more than {MAX_BYTES >> 20} MiB", response.status_code)
        return body

    def __reduce__(self) -> tuple[Any, ...]:
        kept = (self.name, self._timeout_s, self._attempts, self._patience_s, self._before_try, self._wait_asked)
        return type(self), kept


_backoff = wait_random_exponential(multiplier=0.5, max=MAX_WAIT_S)


def _wait(state: RetryCallState) -> float:
    """Choose the seconds until the next try: as many as the service asks for, else a random number that grows."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, ServiceError) else None
    return _backoff(state) if asked is None else asked
