"""Symbolic equality by math-verify, in a few worker processes; one that takes too long is killed.

(predicted, gold) -> Once -> WorkerPool -> Worker -> ``math_worker.py``
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
from pathlib import Path

from rapo_rllib.rewards import math_worker
from rapo_rllib.rewards.once import Once

logger = logging.getLogger(__name__)

TIMEOUT_S = 3.0  # of one comparison
MAX_WORKERS = 4
_START_UP_S = 60.0  # sympy loads in a second; a busy machine may need longer


class Worker:
    """One worker process, started when first needed, and again after it was killed. One comparison at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def equal(self, predicted: str, gold: str, timeout_s: float) -> bool:
        """Whether the two are symbolically equal; False if that cannot be found out in time.

        Raises:
            RuntimeError: the worker cannot be started.
        """
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([predicted, gold]) + "\n")
            process.stdin.flush()
            return _reply(process, timeout_s) == "true"
        except (TimeoutError, BrokenPipeError):
            logger.warning("no verdict on %.80r against %.80r within %g s: not equal", predicted, gold, timeout_s)
            self.stop()
            return False

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
    """Up to ``size`` workers, each started when all others are busy. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._slots = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []

    def equal(self, predicted: str, gold: str, timeout_s: float = TIMEOUT_S) -> bool:
        """As ``Worker.equal``, in a worker that is free; waiting for one is not part of the time limit."""
        with self._slots:
            with self._lock:
                worker = self._idle.pop() if self._idle else Worker()
            try:
                return worker.equal(predicted, gold, timeout_s)
            finally:
                with self._lock:
                    self._idle.append(worker)

    def close(self) -> None:
        """End the worker processes that are idle."""
        with self._lock:
            for worker in self._idle:
                worker.stop()
            self._idle.clear()


def _reply(process: subprocess.Popen[str], timeout_s: float) -> str:
    """One line, or ``TimeoutError``, which also stands for a worker that died. Replies come one at a time, whole."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(timeout_s) else ""
    if not line:
        raise TimeoutError
    return line.strip()


_pool = WorkerPool(min(MAX_WORKERS, os.cpu_count() or 1))
atexit.register(_pool.close)
# The members of a group often give the same answer. A comparison that was given up stays "not equal".
symbolically_equal = Once(_pool.equal)
