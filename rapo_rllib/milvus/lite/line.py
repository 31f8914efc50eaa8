"""Requests over a socket of this machine: a tenth of what a call of a Ray actor costs. Flow: ``handle.py`` <-> the owner."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple


class Address(NamedTuple):
    """The socket, and the secret that opens it."""

    name: str
    key: bytes


class LineServer:
    """Answers requests, each connection in a thread of its own; ends with its process."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer
        self.address = Address(f"\0rapo-{uuid.uuid4().hex}", os.urandom(32))  # no file, so that none is left behind
        self._listener = Listener(self.address.name, "AF_UNIX", backlog=128, authkey=self.address.key)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            with suppress(EOFError, OSError, AuthenticationError):  # of who hangs up, or has no key
                line = self._listener.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: Connection) -> None:
        with suppress(EOFError, OSError), line:
            while True:
                line.send(self._answer(*line.recv()))


class Line:
    """A connection to a server. Safe in threads, one request at a time.

    Raises:
        OSError, EOFError: the server is gone.
    """

    def __init__(self, address: Address) -> None:
        self._lock = threading.Lock()
        self._line = Client(address.name, "AF_UNIX", authkey=address.key)

    def ask(self, timeout_s: float, *request: Any) -> Any:
        """Send a request and return its answer. Raises ``TimeoutError`` after ``timeout_s``; the line is of no use then."""
        with self._lock:
            self._line.send(request)
            if not self._line.poll(timeout_s):
                self._line.close()
                raise TimeoutError(f"no answer in {timeout_s:.0f} s")
            return self._line.recv()

    def close(self) -> None:
        """Hang up."""
        self._line.close()
