"""The one server process of a Milvus Lite path: ``python -m rapo_rllib.milvus.lite.server --path steps.db``.

A Lite folder can be open in one process only, so that process is this small server on 127.0.0.1; ``lease.py`` starts it
and everybody else connects. Files beside the folder: ``.users`` (every user holds a shared flock: its lease), ``.endpoint``
(JSON; the server holds an exclusive flock on it, so a dead server's file is recognised), ``.lock`` (taken while one is
started), ``.log``. The kernel drops flocks of killed processes, so neither a lease nor a server can be left behind. Neither
ray nor grpc is imported before the fork.

The folder may be deleted, and another made in its place, at any moment. The server reaches its files through an open
descriptor of the folder, not through the path: what it still writes then, fails. And it answers only while the folder is there.
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
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rapo_rllib.services.json_files import parsed

if TYPE_CHECKING:
    import grpc

HOST = "127.0.0.1"
ENDPOINT = {"pid": int, "port": int, "machine": str, "folder": int}
POLL_S = 2.0
WORKERS = 10  # requests at a time, as Lite has them
MAX_MESSAGE_BYTES = 256 << 20  # likewise


@dataclass(frozen=True)
class Endpoint:
    """The address of a running server.

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
    """Identify the folder at ``path``: the inode of its LOCK, not given anew while a server has it open; or None."""
    try:
        return Path(path, "LOCK").stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_endpoint(path: str) -> Endpoint | None:
    """The running server of ``path``, or None. Whether it runs is told by its flock, not by its process id or port.

    Raises:
        ValueError: its file is damaged.
    """
    try:
        with beside(path, "endpoint").open(encoding="utf-8") as file:
            if try_lock(file, fcntl.LOCK_SH):
                return None
            return Endpoint(**parsed(file.read(), ENDPOINT, str(file.name)))
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
    try:
        json.dump(asdict(Endpoint(os.getpid(), port, socket.gethostname(), folder)), file)
        file.flush()
        temporary.rename(beside(path, "endpoint"))
    except OSError:  # as where the disk is full
        temporary.unlink()
        raise
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
            users = beside(path, "users").open()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # as where its clients have taken all descriptors: they are no reason to leave the others
            continue
        if try_lock(users, fcntl.LOCK_EX):
            return users
        users.close()
    return None


def open_folder(path: str) -> str:
    """The folder at ``path``, made if need be, under a name that stays its own: other folders at ``path`` are never meant."""
    os.makedirs(path, exist_ok=True)
    return f"/proc/self/fd/{os.open(path, os.O_RDONLY | os.O_DIRECTORY)}"


def serve(path: str, port: int, poll_s: float) -> int:
    """Serve ``path`` until nobody uses it. The first line on stdout is JSON: the port or an error."""
    stop, place = threading.Event(), path
    try:
        from rapo_rllib.milvus.lite.engine import open_database

        place = open_folder(path)
        database = open_database(place)
        folder = folder_id(place)
        if folder is None or folder_id(path) != folder:
            raise FileNotFoundError(f"{path} was deleted or replaced while its server started")

        def is_own() -> bool:
            own = folder_id(path) == folder
            if not own:
                stop.set()
            return own

        server, bound_port = start_grpc(database, port, is_own)
        endpoint = publish_endpoint(path, bound_port, folder)
    except Exception as error:  # the starter reads it and raises it there
        _announce({"error": f"{type(error).__name__}: {error}".replace(place, path)})
        with suppress(OSError):  # the log's disk may be full
            traceback.print_exc()
        os._exit(1)  # gRPC's threads would live on, and keep the folder from the next server
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    _announce({"port": bound_port})
    users = wait_until_unused(path, folder, endpoint, stop, poll_s)
    is_left = not is_own()
    server.stop(grace=0 if is_left else 2).wait()
    if is_left:
        os._exit(0)  # what is in memory is in the log; who copies or deletes the folder is not to be disturbed
    database.close()
    withdraw_endpoint(path, endpoint)
    if users is not None:
        users.close()
    return 0


def start_grpc(database: Any, port: int, is_own: Callable[[], bool]) -> tuple[grpc.Server, int]:
    """Milvus' service of ``database``, which answers only while ``is_own()``; and its port."""
    import grpc
    from milvus_lite.adapter.grpc.servicer import MilvusServicer
    from pymilvus.grpc_gen import milvus_pb2_grpc

    from rapo_rllib.milvus.lite.engine import request

    class OwnFolder(grpc.ServerInterceptor):
        """A client of a deleted folder's server is told to look for another one; nothing is acknowledged that is lost."""

        def intercept_service(self, continuation: Callable, details: Any) -> grpc.RpcMethodHandler | None:
            handler = continuation(details)
            if handler is None or handler.unary_unary is None:
                return handler

            def answer(message: Any, context: grpc.ServicerContext) -> Any:
                request.is_wanted = lambda: context.is_active() and context.time_remaining() != 0
                answered = handler.unary_unary(message, context)
                if not is_own():  # asked last: until now it was
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the folder was deleted or replaced")
                return answered

            return grpc.unary_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)

    server = grpc.server(
        ThreadPoolExecutor(max_workers=WORKERS),
        interceptors=[OwnFolder()],
        options=[(f"grpc.max_{way}_message_length", MAX_MESSAGE_BYTES) for way in ("receive", "send")],
    )
    milvus_pb2_grpc.add_MilvusServiceServicer_to_server(MilvusServicer(database), server)
    bound_port = server.add_insecure_port(f"{HOST}:{port}")
    server.start()
    return server, bound_port


def withdraw_endpoint(path: str, endpoint: IO) -> None:
    """Delete the file ``endpoint``, unless another server has put its own there; none can, while ``.lock`` is held."""
    with endpoint, suppress(FileNotFoundError), beside(path, "lock").open() as lock:
        name = beside(path, "endpoint")
        if try_lock(lock, fcntl.LOCK_EX) and os.path.samestat(os.fstat(endpoint.fileno()), name.stat()):
            name.unlink()


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
