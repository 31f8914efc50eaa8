"""Coroutines that wait for futures, in the thread that drives the engine.

Not ``asyncio``: it refuses a thread in which an event loop runs already (a notebook), and nothing but futures is waited for.
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
    """Wait for a future; returns its result or raises its exception. For ``await`` in what :class:`Coroutines` runs."""
    try:
        yield future
        return future.result()
    finally:
        del future  # else an exception and this frame keep each other


class Coroutines:
    """Runs coroutines side by side, each until it waits for a future; any thread may set a future's result.

    What a coroutine raises comes out of ``run`` or ``resume``; ``close`` then ends the others.
    """

    def __init__(self) -> None:
        self._waiting: dict[Future[Any], Coroutine[Future[Any], None, None]] = {}
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()
        self.waited_s = 0.0  # for a first future, while no coroutine could go on

    def __len__(self) -> int:
        """Count the coroutines that wait: all that have not ended, but for one that is being run."""
        return len(self._waiting)

    def run(self, task: Coroutine[Future[Any], None, None]) -> None:
        """Run a coroutine up to its next wait; it may itself ``run`` others."""
        try:
            future = task.send(None)
        except StopIteration:
            return
        self._waiting[future] = task
        future.add_done_callback(self._done.put)

    def resume(self, timeout_s: float) -> None:
        """Go on with all whose future is done; where there is none, wait for the first, ``timeout_s`` at most."""
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
        """End all where they wait: ``GeneratorExit`` is raised there."""
        while self._waiting:
            self._waiting.popitem()[1].close()
