"""Threads for calls that may never return: a thread that hangs is replaced, and no thread keeps the process alive.

``concurrent.futures.ThreadPoolExecutor`` has neither property: a hung call takes a worker for ever, and the interpreter waits
for all workers when it exits.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_GRACE_S = 5.0  # for running calls to clean up processes and files


class _Call(Future[Any]):
    """A call, its result, and the thread it runs on."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.function = function
        self.arguments = arguments
        self.thread: threading.Thread | None = None


class CallThreads:
    """Threads that run calls in the order of arrival, at most ``count`` at a time besides abandoned calls.

    Args:
        count: number of threads; every new call starts one until there are so many.
        name: of each thread.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()  # without those whose call was abandoned
        self._open = True
        atexit.register(self.shutdown)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call ``function(*arguments)`` on the next free thread."""
        call = _Call(function, arguments)
        with self._lock:
            if not self._open:
                raise RuntimeError("submit() after shutdown()")
            if len(self._threads) < self._count:
                self._start_thread()
        self._queue.put(call)
        return call

    def abandon(self, future: Future[Any], error: Exception | None = None) -> bool:
        """Give up a call: one that has not begun is cancelled; one that runs ends with ``error``, and its thread is replaced.

        Returns whether the call was running; after ``shutdown`` always False.
        """
        assert isinstance(future, _Call)
        with self._lock:
            if future.cancel() or not future.running() or not self._open:
                return False
            assert future.thread is not None
            self._threads.discard(future.thread)
            self._start_thread()
            future.set_exception(error or CancelledError())
            return True

    def shutdown(self, grace_s: float = _GRACE_S) -> None:
        """Cancel calls that have not begun; wait at most ``grace_s`` for running calls. A thread that hangs is left behind."""
        atexit.unregister(self.shutdown)
        with self._lock:
            self._open = False
            threads = list(self._threads)
        while True:
            try:
                call = self._queue.get_nowait()
            except Empty:
                break
            if call is not None:
                call.cancel()
        for _ in threads:
            self._queue.put(None)
        deadline = time.monotonic() + grace_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            call.thread = threading.current_thread()
            if call.set_running_or_notify_cancel():
                settle = _outcome(call)
                with self._lock:
                    if call.done():  # abandoned: another thread has taken the place of this one
                        return
                    settle()
                del settle
            del call  # else this thread keeps its result while it waits for the next call


def _outcome(call: _Call) -> Callable[[], None]:
    """Make the call; return a function that hands its result or exception to the waiting threads."""
    try:
        return partial(call.set_result, call.function(*call.arguments))
    except BaseException as error:  # the waiting thread handles it
        return partial(call.set_exception, error)
