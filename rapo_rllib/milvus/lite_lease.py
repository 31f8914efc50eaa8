"""A user's share in the one server of a Milvus Lite path. Flow: ``connection.py`` asks it for the address."""

from __future__ import annotations

import fcntl
import json
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

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.lite_server import HOST, Endpoint, beside, folder_id, read_endpoint, try_lock

START_TIMEOUT_S = 60.0  # a killed server's log is replayed first: 5.5 s were seen
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


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
        if self._users is None:
            users = beside(self.path, "users").open("a")
            _wait_for_lock(users, fcntl.LOCK_SH, START_TIMEOUT_S)  # taken at once, unless a server is just leaving
            self._users = users
        endpoint = self._running()
        if endpoint is None:
            with exclusive_lock(beside(self.path, "lock"), START_TIMEOUT_S):
                endpoint = self._running() or _start_server(self.path, self._uri_key)
        return f"http://{HOST}:{endpoint.port}"

    def release(self) -> None:
        """Give the lease back. Closing, not unlocking: a forked child may hold the same lease."""
        if self._users is not None:
            self._users.close()
            self._users = None

    def _running(self) -> Endpoint | None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            endpoint = read_endpoint(self.path)
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
    deadline = time.monotonic() + timeout_s
    while not try_lock(file, operation):
        if time.monotonic() > deadline:
            raise RetrievalError(
                f"{file.name} stayed locked for {timeout_s:.0f} s; a process that holds it may hang (see `lsof`)"
            )
        time.sleep(0.05)


def _start_server(path: str, uri_key: str) -> Endpoint:
    """Start the detached server process and wait until it serves."""
    environment = dict(os.environ, PYTHON_DOTENV_DISABLED="1")  # pymilvus would read any .env file into the environment
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    with beside(path, "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rapo_rllib.milvus.lite_server", "--path", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=environment,
        )
    assert process.stdout is not None
    with process.stdout as pipe:
        ready, _, _ = select.select([pipe], [], [], START_TIMEOUT_S)
        line = pipe.readline() if ready else b""
    if not ready:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    answer = json.loads(line) if line.endswith(b"\n") else {"error": "no answer"}
    endpoint = read_endpoint(path)
    if "error" in answer or endpoint is None:
        raise RetrievalError(
            f"{uri_key}: the Milvus Lite server of {path} did not start ({answer.get('error', 'it ended')}). "
            f"See {beside(path, 'log')}; if another program has the folder open, end it."
        )
    return endpoint
