"""Coroutines that wait for futures, in the thread that drives the engine.

Not ``asyncio``: it refuses a thread in which an event loop runs already (a notebook), and coroutines here await futures only.
A loop on ``asyncio`` was built and measured: it took 1.4 times the CPU time per trajectory, and saved 50 lines at most.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


@coroutine
def result_of(future: Future[T]) -> Generator[Future[T], None, T]:
    """Wait for a future and return its result or raise its exception; for ``await`` in coroutines of :class:`Coroutines`."""
    try:
        yield future
        return future.result()
    finally:
        del future  # else an exception and this frame keep each other alive


class Coroutines:
    """Coroutines that run side by side, each up to its next wait for a future; any thread may set a future's result.

    An exception in a coroutine comes out of ``run`` or ``resume``; ``close`` then ends the other coroutines.
    """

    def __init__(self) -> None:
        self._waiting: dict[Future[Any], Coroutine[Future[Any], None, None]] = {}
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()
        self.waited_s = 0.0  # seconds in which no coroutine could go on, up to the first future that was done

    def __len__(self) -> int:
        """Count the coroutines that wait: all that have not ended, except one that is running now."""
        return len(self._waiting)

    def run(self, task: Coroutine[Future[Any], None, None]) -> None:
        """Run a coroutine up to its next wait; the coroutine may itself ``run`` other ones."""
        try:
            future = task.send(None)
        except StopIteration:
            return
        self._waiting[future] = task
        future.add_done_callback(self._done.put)

    def resume(self, timeout_s: float) -> None:
        """Resume all coroutines whose future is done; if no future is done, wait for the first, at most ``timeout_s``."""
        started = time.monotonic()
        try:
            future = self._done.get(timeout=timeout_s)
        except Empty:
            return
        finally:
            self.waited_s += time.monotonic() - started
        self.run(self._waiting.pop(future))
        while not self._done.empty():
            self.run(self._waiting.pop(self._done.get()))

    def close(self) -> None:
        """End all coroutines: ``GeneratorExit`` is raised in each at the place where it waits."""
        while self._waiting:
            self._waiting.popitem()[1].close()
