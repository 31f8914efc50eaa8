"""Symbolic equality by math-verify, in a worker process that is killed when it takes too long."""

from __future__ import annotations

import atexit
import json
import logging
import selectors
import subprocess
import sys
import threading
from pathlib import Path

from rapo_rllib.envs import math_worker

logger = logging.getLogger(__name__)

TIMEOUT_S = 3.0  # of one comparison
_START_UP_S = 60.0  # sympy loads in a second; a busy machine may need longer
_MAX_CHARS = 1000  # longer answers are not equal to anything


class MathWorker:
    """One worker process, started when first needed, and again after it was killed. Thread-safe, one comparison at a time."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def equal(self, predicted: str, gold: str) -> bool:
        """Whether the two are symbolically equal; False if that cannot be found out in time.

        Raises:
            RuntimeError: the worker cannot be started.
        """
        if max(len(predicted), len(gold)) > _MAX_CHARS:
            return False
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps([predicted, gold]) + "\n")
                process.stdin.flush()
                return _reply(process, self._timeout_s) == "true"
            except (TimeoutError, BrokenPipeError):
                logger.warning("no verdict on %.80r against %.80r within %g s: not equal", predicted, gold, self._timeout_s)
                self._stop()
                return False

    def close(self) -> None:
        """End the worker process."""
        with self._lock:
            self._stop()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
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
                self._stop()
                raise RuntimeError("cannot compare mathematical answers: `import math_verify` fails; install math-verify")
        return self._process

    def _stop(self) -> None:
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


def _reply(process: subprocess.Popen[str], timeout_s: float) -> str:
    """One line, or ``TimeoutError``, which also stands for a worker that died. Replies come one at a time, whole."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(timeout_s) else ""
    if not line:
        raise TimeoutError
    return line.strip()


_worker = MathWorker()
atexit.register(_worker.close)
symbolically_equal = _worker.equal
