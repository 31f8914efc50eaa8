"""Keep results of searches, and whose turn it is (the rate limit), on disk for all processes of a machine.

Both live in one ``diskcache`` folder. Where it cannot be read or written, searches go on without it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import diskcache
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("it keeps results with diskcache: run `pip install 'rapo_rllib[web-search]'`") from error

from rapo_rllib.web_search.provider import Found, Hit

logger = logging.getLogger(__name__)

_DISK_ERRORS = (OSError, sqlite3.Error, zlib.error, ValueError, diskcache.Timeout)
_PLAIN_MODES = (1, 2)  # diskcache's "raw" and "binary"; 4 is "pickle"
_LONGEST_QUEUE_S = 3600.0  # a turn further away was written under another clock
KEPT_S = 30 * 86400.0  # results: a training and its repetitions find the same, and the web is not years older


class JSONTextDisk(diskcache.JSONDisk):
    """Compressed JSON and nothing else: diskcache would unpickle a row that says it is one, whoever wrote it."""

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """The value of one row."""
        if mode not in _PLAIN_MODES:
            raise ValueError(f"a row of mode {mode}, which web_search does not write")
        return super().fetch(mode, filename, value, read)


class SearchStore:
    """Results by request, and the queue of each key.

    Args:
        folder: None: nothing is kept, and the rate limit holds for one process.

    Raises:
        ValueError: there can be no such folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._cache: diskcache.Cache | None = None
        self._warned = False
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"env_config.tools: web_search option cache = '{folder}': {error.strerror}") from error
            try:
                self._cache = diskcache.Cache(str(folder), timeout=10, disk=JSONTextDisk)
            except _DISK_ERRORS as error:
                self._warn(error)

    def get(self, key: str) -> Found | None:
        """The results of an earlier search."""
        if self._cache is None:
            return None
        try:
            with self._connected() as cache:
                return _found(cache.get(key))
        except _DISK_ERRORS as error:
            self._warn(error)
            return None

    def put(self, key: str, found: Found) -> None:
        """Keep the results of a search."""
        if self._cache is None:
            return
        kept = {"answer": found.answer, "hits": [[hit.title, hit.url, hit.snippet] for hit in found.hits]}
        try:
            with self._connected() as cache:
                cache.set(key, kept, expire=KEPT_S)
        except _DISK_ERRORS as error:
            self._warn(error)

    def take_turn(self, queue: str, rate_per_s: float, patience_s: float) -> float | None:
        """Seconds until the caller's turn, which is then taken; None: it would come after ``patience_s``."""
        if self._cache is not None:
            try:
                with self._connected() as cache, cache.transact():
                    return _take_turn(cache, queue, rate_per_s, patience_s)
            except _DISK_ERRORS as error:
                self._warn(error)
        with _process_lock:
            return _take_turn(_process_queues, queue, rate_per_s, patience_s)

    @contextmanager
    def _connected(self) -> Iterator[diskcache.Cache]:
        """The cache with a connection of this thread, closed afterwards: every call of a tool has a thread of its own."""
        assert self._cache is not None
        with self._cache as cache:
            yield cache

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "web_search: trouble with the cache %s (%s: %s); searches go on without. If it is damaged, delete the folder.",
                self._folder,
                type(error).__name__,
                error,
            )


_process_queues: dict[str, float] = {}
_process_lock = threading.Lock()


def _take_turn(queues: Any, queue: str, rate_per_s: float, patience_s: float) -> float | None:
    """Turns are ``1 / rate_per_s`` apart; ``queues`` holds the next free one."""
    now = time.time()
    turn = queues.get(queue, now)
    if not isinstance(turn, (int, float)) or not now < turn < now + _LONGEST_QUEUE_S:
        turn = now
    if turn - now > patience_s:
        return None
    queues[queue] = turn + 1 / rate_per_s
    return turn - now


def _found(kept: Any) -> Found | None:
    """Return what ``put`` wrote; None for nothing.

    Raises:
        ValueError: somebody else wrote it.
    """
    if kept is None:
        return None
    match kept:
        case {"answer": str(answer), "hits": list(rows)}:
            if all(isinstance(row, list) and len(row) == 3 and all(isinstance(part, str) for part in row) for row in rows):
                return Found(tuple(Hit(*row) for row in rows), answer)
    raise ValueError("an entry that web_search has not written")
