"""A user's share in the one server of a Milvus Lite path. Flow: ``connection.py`` asks it for the address."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rapo_rllib.errors import RetrievalError, shortage
from rapo_rllib.milvus.lite.server import HOST, Endpoint, beside, folder_id, read_endpoint, try_lock

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 600.0  # every collection is opened first, and a killed server's log read again
SAY_S = 10.0  # between messages about a start that takes long
STARTS = 3  # of a server that is killed before it serves
PACKAGE_ROOT = Path(__file__).resolve().parents[3]


def check_lite_path(path: str, uri_key: str) -> None:
    """Refuse a path that cannot hold a Milvus Lite folder; makes the parent folders.

    Raises:
        ValueError: naming ``uri_key``, what the user calls the path, and what to do.
    """
    folder = Path(path)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{uri_key}: the folder {folder.parent} cannot be made ({error}). Name another.") from error
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"{uri_key}: {path} is a file; Milvus Lite 3 keeps a folder. Name another path, or move the file away."
        )
    for place in [folder.parent, *([folder] if folder.exists() else [])]:
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            raise ValueError(f"{uri_key}: no permission to read and write {place}. Name another path, or change it.")


@contextmanager
def exclusive_lock(file_name: Path, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive flock on a file. Raises ``RetrievalError`` if it is not free within ``timeout_s``."""
    with file_name.open("a") as file:
        _wait_for_lock(file, fcntl.LOCK_EX, timeout_s)
        yield


class LiteLease:
    """One user of a Lite path. While it is held the server stays; one that was killed is started anew by :meth:`address`."""

    def __init__(self, path: str, uri_key: str) -> None:
        self.path = path
        self._uri_key = uri_key
        self._users: IO | None = None

    def address(self) -> str:
        """``http://127.0.0.1:port`` of the running server, started if there is none.

        Raises:
            ValueError: the path cannot hold a Milvus Lite folder.
            RetrievalError: the server did not start, or runs on another machine that shares the disk.
        """
        check_lite_path(self.path, self._uri_key)
        try:
            if self._users is None:
                users = beside(self.path, "users").open("a")
                _wait_for_lock(users, fcntl.LOCK_SH, START_TIMEOUT_S)  # taken at once, unless a server is just leaving
                self._users = users
            endpoint = self._running() or self._started()
        except OSError as error:
            raise RetrievalError(self._refusal(str(error))) from error
        return f"http://{HOST}:{endpoint.port}"

    def _refusal(self, reason: str) -> str:
        advice = f"See {beside(self.path, 'log')}; if another program has the folder open, end it."
        if remedy := shortage(reason):
            advice = f"What was stored before is still there: {remedy}, then do the same again."
        return f"{self._uri_key}: the Milvus Lite server of {self.path} did not start ({reason}). {advice}"

    def release(self) -> None:
        """Give the lease back. Closing, not unlocking: a forked child may hold the same lease."""
        if self._users is not None:
            self._users.close()
            self._users = None

    def _started(self) -> Endpoint:
        with exclusive_lock(beside(self.path, "lock"), START_TIMEOUT_S):
            for _ in range(STARTS):
                endpoint = self._running()
                if endpoint is not None:
                    return endpoint
                refusal = _start_server(self.path)
                if refusal and not refusal.startswith("FileNotFoundError"):  # that: the folder was deleted meanwhile
                    break
            endpoint = self._running()
        if endpoint is None:
            raise RetrievalError(self._refusal(refusal or "it was killed"))
        return endpoint

    def _running(self) -> Endpoint | None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                endpoint = read_endpoint(self.path)
            except ValueError as error:
                raise RetrievalError(
                    f"{self._uri_key}: {error}. Delete it: its server then ends, and another is started."
                ) from error
            if endpoint is None:
                return None
            if endpoint.machine != socket.gethostname():
                raise RetrievalError(
                    f"{self._uri_key}: {self.path} is in use on the machine {endpoint.machine}. A Milvus Lite path "
                    "serves one machine; for several, start a Milvus server and name it: http://host:19530"
                )
            if endpoint.folder == folder_id(self.path):
                return endpoint
            if time.monotonic() > deadline:
                raise RetrievalError(
                    f"{self.path} was deleted or replaced under its server (process {endpoint.pid}), which does not end"
                )
            time.sleep(0.1)  # somebody deleted or replaced the folder; its server notices and leaves


def _wait_for_lock(file: IO, operation: int, timeout_s: float) -> None:
    start = said = time.monotonic()
    while not try_lock(file, operation):
        now = time.monotonic()
        if now - start > timeout_s:
            raise RetrievalError(
                f"{file.name} stayed locked for {timeout_s:.0f} s; a process that holds it may hang (see `lsof`)"
            )
        if now - said > SAY_S:
            said = now
            logger.warning("waiting for another process to unlock %s (for %.0f s now)", file.name, now - start)
        time.sleep(0.05)


def _start_server(path: str) -> str:
    """Start the detached server process and wait until it serves, or is killed. Returns what it said if it refused, or ""."""
    environment = dict(os.environ, PYTHON_DOTENV_DISABLED="1")  # pymilvus would read any .env file into the environment
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    with beside(path, "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rapo_rllib.milvus.lite.server", "--path", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=environment,
        )
    assert process.stdout is not None
    with process.stdout as pipe:
        line = _first_line(pipe, path)
    if line is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if line is None:
        return f"no answer in {START_TIMEOUT_S:.0f} s"
    return str(json.loads(line).get("error", "")) if line.endswith(b"\n") else ""


def _first_line(pipe: IO[bytes], path: str) -> bytes | None:
    """The first line, empty if the server ended without one; None: it took too long. Says now and then what is waited for."""
    start = time.monotonic()
    while not select.select([pipe], [], [], SAY_S)[0]:
        waited = time.monotonic() - start
        if waited > START_TIMEOUT_S:
            return None
        logger.warning("the Milvus Lite server of %s is opening its collections (for %.0f s now)", path, waited)
    return pipe.readline()
