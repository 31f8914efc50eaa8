"""Symbolic equality by math-verify, in a few worker processes; one that takes too long ends.

(predicted, gold) -> Once -> Workers -> ``math_worker.py``
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from rapo_rllib.rewards import math_worker
from rapo_rllib.rewards.once import Once

logger = logging.getLogger(__name__)

TIMEOUT_S = 3.0  # of one comparison, in seconds of computing
_SLOTS = 12  # comparisons at a time in one process of the run
KEPT = 4  # workers that stay when there is nothing to compare


class NoVerdict(Exception):
    """It was not found out whether two answers are equal: time or memory were used up."""


class Workers:
    """Worker processes, forked when needed from one that has loaded math-verify. Thread-safe."""

    def __init__(self) -> None:
        self._slots, self._lock = threading.BoundedSemaphore(_SLOTS), threading.Lock()
        self._idle: list[socket.socket] = []
        self._origin: subprocess.Popen[bytes] | None = None
        self._forks: socket.socket

    def equal(self, predicted: str, gold: str, timeout_s: float = TIMEOUT_S) -> bool | None:
        """Whether the two are symbolically equal; None if that cannot be found out in time, or in the memory there is.

        Args:
            predicted: LaTeX.
            gold: LaTeX.
            timeout_s: seconds of computing; waiting for a slot is no part of it.

        Raises:
            RuntimeError: math-verify cannot be loaded.
        """
        with self._slots:
            reply = self._reply(json.dumps([predicted, gold, timeout_s]).encode())
        if not reply:
            logger.warning("no verdict on %.80r against %.80r within %g s: not equal", predicted, gold, timeout_s)
        return reply == b"1" if reply else None

    def _reply(self, request: bytes) -> bytes:
        """What a worker replies; nothing if it has ended."""
        with self._lock:
            worker = self._worker()
        try:
            worker.send(request)
            reply = worker.recv(1)
        except OSError:
            reply = b""
        with self._lock:
            if reply and len(self._idle) < KEPT:
                self._idle.append(worker)
            else:
                worker.close()
        return reply

    def _worker(self) -> socket.socket:
        """Take one that is idle and alive, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            with suppress(ConnectionError):
                try:
                    worker.recv(1, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return worker
            worker.close()
        if self._origin is None or self._origin.poll() is not None:
            self._origin, self._forks = _started()
        worker, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with other, suppress(ConnectionError):
            socket.send_fds(self._forks, [b"fork"], [other.fileno()])
        return worker


def _started() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process that workers are forked from, and wait until it has loaded math-verify."""
    forks, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with other:
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(math_worker.__file__))],
            stdin=other.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the trainer, whose end closes the socket
        )
    if not forks.recv(16):
        process.wait()
        raise RuntimeError("cannot compare mathematical answers: `import math_verify` fails; install math-verify")
    return process, forks


# The members of a group often give the same answer. A comparison that was given up is not tried again.
_verdict = Once(Workers().equal)


def symbolically_equal(predicted: str, gold: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether two expressions, equations or inequalities in LaTeX are equal, and nothing in ``predicted`` is left to calculate.

    Raises:
        NoVerdict: that was not found out in time.
    """
    found = _verdict(predicted, gold, timeout_s)
    if found is None:
        raise NoVerdict(predicted)
    return found
