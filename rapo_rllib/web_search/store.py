"""Keep results of searches, and the queues for turns (the rate limit), on disk for all processes of a machine.

Both live in one ``diskcache`` folder. If the folder cannot be read or written, searches go on without it.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

try:
    import diskcache
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("it keeps results with diskcache: run `pip install 'rapo_rllib[web-search]'`") from error

from rapo_rllib.web_search.providers import Hit

logger = logging.getLogger(__name__)

_DISK_ERRORS = (OSError, sqlite3.Error, zlib.error, ValueError, diskcache.Timeout)
_PLAIN_MODES = (1, 2)  # diskcache's "raw" and "binary"; 4 is "pickle"
_LONGEST_QUEUE_S = 3600.0  # a turn further away was written under another clock
KEPT_S = 30 * 86400.0  # how long results are kept: a training and its repetitions find the same, but nothing years old

Result = TypeVar("Result")


class JSONTextDisk(diskcache.JSONDisk):
    """Disk cache of compressed JSON only: diskcache would unpickle any row that claims to be a pickle."""

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """Return the value of one row."""
        if mode not in _PLAIN_MODES:
            raise ValueError(f"a row of mode {mode}, which web_search does not write")
        return super().fetch(mode, filename, value, read)


class SearchStore:
    """Store of results by request, and of the queue of each provider's key.

    Args:
        folder: of the store; None: nothing is kept, and the rate limit holds for one process.

    Raises:
        ValueError: the folder cannot be made.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._warned = folder, False
        self._cache: diskcache.Cache | None = None
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"env_config.tools: web_search option cache = '{folder}': {error.strerror}") from error

    def get(self, key: str) -> list[Hit] | None:
        """Return the results of an earlier search; None: there are none."""
        kept = self._with_cache(lambda cache: cache.get(key))
        return None if kept is None else [Hit(*row) for row in kept]

    def put(self, key: str, found: list[Hit]) -> None:
        """Keep the results of a search."""
        self._with_cache(lambda cache: cache.set(key, found, expire=KEPT_S))

    def take_turn(self, queue: str, rate_per_s: float, patience_s: float) -> float:
        """Take a turn, and return the seconds until it; if it would come after ``patience_s``, take none, return infinity."""

        def take(cache: diskcache.Cache) -> float:
            with cache.transact():  # no other process comes between
                return _take_turn(cache, queue, rate_per_s, patience_s)

        turn = self._with_cache(take)
        if turn is not None:
            return turn
        with _process_lock:
            return _take_turn(_process_queues, queue, rate_per_s, patience_s)

    def _with_cache(self, work: Callable[[diskcache.Cache], Result]) -> Result | None:
        """Do ``work`` with the cache, and return its result; None: there is no cache, or it is damaged."""
        if self._folder is None:
            return None
        try:
            if self._cache is None:
                self._cache = diskcache.Cache(str(self._folder), timeout=10, disk=JSONTextDisk)
            with self._cache as cache:  # closes its connection: every call of a tool has its own thread
                return work(cache)
        except _DISK_ERRORS as error:
            if not self._warned:
                self._warned = True
                text = (
                    "web_search: trouble with the cache %s (%s: %s); searches go on without. Delete the folder if it is damaged"
                )
                logger.warning(text, self._folder, type(error).__name__, error)
            return None


_process_queues: dict[str, float] = {}
_process_lock = threading.Lock()


def _take_turn(queues: Any, queue: str, rate_per_s: float, patience_s: float) -> float:
    """Take a turn as :meth:`SearchStore.take_turn`: turns are ``1 / rate_per_s`` apart, ``queues`` has the next free one."""
    now = time.time()
    turn = queues.get(queue, now)
    if not isinstance(turn, (int, float)) or not now < turn < now + _LONGEST_QUEUE_S:
        turn = now
    if turn - now > patience_s:
        return math.inf
    queues[queue] = turn + 1 / rate_per_s
    return turn - now
