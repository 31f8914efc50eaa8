"""The one server process of a Milvus Lite path: ``python -m rapo_rllib.milvus.lite_server --path steps.db``.

A Lite folder can be open in one process only, so that process is this small server on 127.0.0.1; ``lite_lease.py`` starts it
and everybody else connects. Files beside the folder: ``.users`` (every user holds a shared flock: its lease), ``.endpoint``
(JSON; the server holds an exclusive flock on it, so a dead server's file is recognised), ``.lock`` (taken while one is
started), ``.log``. The kernel drops flocks of killed processes, so neither a lease nor a server can be left behind. Neither
ray nor grpc is imported before the fork.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

HOST = "127.0.0.1"
POLL_S = 2.0


@dataclass(frozen=True)
class Endpoint:
    """Where a running server listens.

    ``machine`` because the folder may be on a shared disk and the port is not; ``folder`` because another may lie at the path
    by now (see ``folder_id``).
    """

    pid: int
    port: int
    machine: str
    folder: int


def beside(path: str, kind: str) -> Path:
    """The file ``<path>.<kind>``."""
    return Path(f"{path}.{kind}")


def folder_id(path: str) -> int | None:
    """Which folder lies at ``path``: the inode of its LOCK, not given anew while a server has it open; or None."""
    try:
        return Path(path, "LOCK").stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_endpoint(path: str) -> Endpoint | None:
    """The running server of ``path``, or None. Whether it runs is told by its flock, not by its process id or port."""
    try:
        with beside(path, "endpoint").open(encoding="utf-8") as file:
            if try_lock(file, fcntl.LOCK_SH):
                return None
            return Endpoint(**json.load(file))
    except FileNotFoundError:
        return None


def try_lock(file: IO, operation: int) -> bool:
    """Take a flock if it is free; tells whether it was."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def publish_endpoint(path: str, port: int, folder: int) -> IO:
    """Write ``<path>.endpoint`` in one rename, locked from the start. Return the open file, whose flock says "running"."""
    temporary = beside(path, f"endpoint.{os.getpid()}")
    file = temporary.open("w", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_EX)
    json.dump(asdict(Endpoint(os.getpid(), port, socket.gethostname(), folder)), file)
    file.flush()
    temporary.rename(beside(path, "endpoint"))
    return file


def wait_until_unused(path: str, folder: int, endpoint: IO, stop: threading.Event, poll_s: float) -> IO | None:
    """Return when nobody holds a lease, ``stop`` is set, or ``folder`` or the file ``endpoint`` was deleted or replaced.

    The returned file keeps `.users` locked: whoever comes now waits until this server has closed the folder.
    """
    own = os.fstat(endpoint.fileno()).st_ino
    while not stop.wait(poll_s):
        try:
            if beside(path, "endpoint").stat().st_ino != own or folder_id(path) != folder:
                return None
            users = beside(path, "users").open("a")
        except FileNotFoundError:
            return None
        if try_lock(users, fcntl.LOCK_EX):
            return users
        users.close()
    return None


def serve(path: str, port: int, poll_s: float) -> int:
    """Serve ``path`` until nobody uses it. The first line on stdout is JSON: the port or an error."""
    try:
        from milvus_lite.adapter.grpc.server import start_server_in_thread

        server, database, bound_port = start_server_in_thread(path, HOST, port)
        folder = folder_id(path)
        if folder is None:
            raise FileNotFoundError(f"{path} was deleted while its server started")
        endpoint = publish_endpoint(path, bound_port, folder)
    except Exception as error:  # the starter reads it and raises it there
        _announce({"error": f"{type(error).__name__}: {error}"})
        raise
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    _announce({"port": bound_port})
    users = wait_until_unused(path, folder, endpoint, stop, poll_s)
    server.stop(grace=2).wait()
    if folder_id(path) != folder:
        os._exit(0)  # closing writes what is still in memory: into a folder that is another's, or to be gone
    database.close()
    if os.path.exists(beside(path, "endpoint")) and os.path.samestat(
        os.fstat(endpoint.fileno()), beside(path, "endpoint").stat()
    ):
        beside(path, "endpoint").unlink()
    endpoint.close()
    if users is not None:
        users.close()
    return 0


def _announce(message: dict) -> None:
    """Tell the starter, then let go of its pipe."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def main() -> int:
    """Parse the command line, detach, serve."""
    parser = argparse.ArgumentParser(description="Serve one Milvus Lite folder on 127.0.0.1 until nobody uses it.")
    parser.add_argument("--path", required=True, help="the folder, ending in .db")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--poll-s", type=float, default=POLL_S, help="seconds between looks at the leases")
    arguments = parser.parse_args()
    # Ray kills the children of a worker that ends. A grandchild belongs to nobody, and leaves no zombie in the starter.
    if os.fork():
        os._exit(0)
    return serve(os.path.abspath(arguments.path), arguments.port, arguments.poll_s)


if __name__ == "__main__":
    sys.exit(main())
