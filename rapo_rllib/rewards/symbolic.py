"""Symbolic equality by math-verify, in a few worker processes; one that takes too long is killed.

(predicted, gold) -> Once -> WorkerPool -> Worker -> ``math_worker.py``

A comparison that is not done at once gives its slot to the next one, so that the answers of one trajectory do not hold up
the others.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from rapo_rllib.rewards import math_worker
from rapo_rllib.rewards.once import Once

logger = logging.getLogger(__name__)

TIMEOUT_S = 3.0  # of one comparison, in seconds of computing
MAX_WORKERS = 4
QUICK_S = 0.25  # so long a comparison keeps its slot, which is many times what an ordinary one takes
_SLOW_FACTOR = 2  # comparisons that have given up their slots, for each slot
_BUSY_FACTOR = 10  # how much longer than its computing a comparison may take on a busy machine
_START_UP_S = 60.0  # sympy loads in a second; a busy machine may need longer


class NoVerdict(Exception):
    """It was not found out whether two answers are equal: time or memory were used up."""


class Worker:
    """One worker process, started when first needed, and again after it was killed. One comparison at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def equal(self, predicted: str, gold: str, timeout_s: float, on_slow: Callable[[], None] = lambda: None) -> bool | None:
        """Whether the two are symbolically equal; None if that cannot be found out in time, or in the memory there is.

        Args:
            predicted: LaTeX.
            gold: LaTeX.
            timeout_s: seconds of computing.
            on_slow: called when the reply is not there at once.

        Raises:
            RuntimeError: the worker cannot be started.
        """
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([predicted, gold, timeout_s]) + "\n")
            process.stdin.flush()
            if not _replies(process, QUICK_S):
                on_slow()
            found: bool | None = json.loads(_reply(process, _BUSY_FACTOR * timeout_s))
        except (TimeoutError, BrokenPipeError):
            self.stop()
            found = None
        if found is None:
            logger.warning("no verdict on %.80r against %.80r within %g s: not equal", predicted, gold, timeout_s)
        return found

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(math_worker.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the trainer, which closes stdin
            )
            try:
                ready = _reply(self._process, _START_UP_S)
            except TimeoutError:
                ready = ""
            if ready != "ready":
                self.stop()
                raise RuntimeError("cannot compare mathematical answers: `import math_verify` fails; install math-verify")
        return self._process

    def stop(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:  # what was not sent is lost, as the process is
                        continue


class WorkerPool:
    """Up to ``size`` workers that are quick, and twice as many slow ones, each started when it is needed. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._quick = threading.BoundedSemaphore(size)
        self._slow = threading.BoundedSemaphore(_SLOW_FACTOR * size)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []

    def equal(self, predicted: str, gold: str, timeout_s: float = TIMEOUT_S) -> bool | None:
        """As ``Worker.equal``, in a worker that is free; waiting for one is not part of the time limit."""
        slot = self._quick
        slot.acquire()

        def step_aside() -> None:
            nonlocal slot
            if self._slow.acquire(blocking=False):
                self._quick.release()
                slot = self._slow

        with self._lock:
            worker = self._idle.pop() if self._idle else Worker()
        try:
            return worker.equal(predicted, gold, timeout_s, step_aside)
        finally:
            self._put_back(worker)
            slot.release()

    def _put_back(self, worker: Worker) -> None:
        with self._lock:
            wanted = len(self._idle) < self._size
            if wanted:
                self._idle.append(worker)
        if not wanted:
            worker.stop()

    def close(self) -> None:
        """End the worker processes that are idle."""
        with self._lock:
            for worker in self._idle:
                worker.stop()
            self._idle.clear()


def _replies(process: subprocess.Popen[str], timeout_s: float) -> bool:
    """Whether there is a reply, or the end of the process, within ``timeout_s``."""
    with selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


def _reply(process: subprocess.Popen[str], timeout_s: float) -> str:
    """One line, or ``TimeoutError``, which also stands for a worker that died. Replies come one at a time, whole."""
    assert process.stdout is not None
    line = process.stdout.readline() if _replies(process, timeout_s) else ""
    if not line:
        raise TimeoutError
    return line.strip()


_pool = WorkerPool(min(MAX_WORKERS, os.cpu_count() or 1))
atexit.register(_pool.close)
# The members of a group often give the same answer. A comparison that was given up is not tried again.
_verdict = Once(_pool.equal)


def symbolically_equal(predicted: str, gold: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether two expressions, equations or inequalities in LaTeX are equal, and nothing in ``predicted`` is left to calculate.

    Raises:
        NoVerdict: that was not found out in time.
    """
    found = _verdict(predicted, gold, timeout_s)
    if found is None:
        raise NoVerdict(predicted)
    return found
