"""Work that several threads ask for is done once, and its result kept for whoever asks later."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Once(Generic[Result]):
    """A function of texts whose results are kept; while one thread computes a result, others wait for it.

    Args:
        function: what it raises is raised to all who wait, and not kept.
        size: results kept; the one that was asked for longest ago goes first.
    """

    def __init__(self, function: Callable[..., Result], size: int = 4096) -> None:
        self._function, self._size = function, size
        self._found: OrderedDict[tuple[str | float, ...], Future[Result]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *key: str | float) -> Result:
        """The function's result for these arguments."""
        with self._lock:
            future = self._found.get(key)
            mine = future is None
            if future is None:
                future = self._found[key] = Future()
                if len(self._found) > self._size:
                    self._found.popitem(last=False)
            self._found.move_to_end(key)
        if mine:
            self._fill(future, key)
        return future.result()

    def _fill(self, future: Future[Result], key: tuple[str | float, ...]) -> None:
        try:
            future.set_result(self._function(*key))
        except BaseException as error:
            with self._lock:
                if self._found.get(key) is future:
                    del self._found[key]
            future.set_exception(error)
