"""Servers of Lite paths, forked where their imports are done: as programs of their own they take a second of CPU each to start.

Only those that a test's process starts: its children, Ray's workers and the command line start programs, as users do. So do
tests with the fixture ``lite_programs``, and those that put another ``Popen`` in the place of :class:`ForkedServer`.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

TESTS = Path(__file__).resolve().parent
LEASE = "rapo_rllib.milvus.lite_lease"
IMPORTS = ("grpc", "milvus_lite.adapter.grpc.servicer", "pymilvus.grpc_gen.milvus_pb2_grpc", "rapo_rllib.milvus.lite_engine")


class ForkedServer:
    """What ``subprocess.Popen`` is to who starts a server."""

    more: tuple[str, ...] = ()  # arguments

    def __init__(self, command: Sequence[str], stderr: IO[bytes], env: dict[str, str], **_: Any) -> None:
        out, theirs = os.pipe()
        told, tells = os.pipe()
        order = json.dumps({"arguments": [*command[4:], *self.more], "env": env}).encode()
        socket.send_fds(template(), [order], [theirs, stderr.fileno(), tells])
        os.close(theirs), os.close(tells)
        with open(told) as pipe:
            self.pid = int(pipe.read())
        self.stdout = open(out, "rb")  # noqa: SIM115 - closed by who reads it

    def wait(self) -> None:
        """The process has forked the server and ended, or was killed; its parent is the template."""


@functools.cache
def template() -> socket.socket:
    """The process that has the imports; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHON_DOTENV_DISABLED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    command = [sys.executable, "-c", f"import lite_starts; lite_starts.serve_orders({theirs.fileno()})"]
    subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    theirs.close()
    return ours


def serve_orders(number: int) -> None:
    """The template's loop."""
    for name in IMPORTS:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what it forks
    orders = socket.socket(fileno=number)
    while True:
        order, fds, *_ = socket.recv_fds(orders, 1 << 20, 3)
        if not order:
            return
        if os.fork() == 0:
            try:
                orders.close()
                _become_server(json.loads(order), *fds)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)


def _become_server(order: dict[str, Any], out: int, log: int, tells: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.write(tells, str(os.getpid()).encode())
    os.dup2(out, 1), os.dup2(log, 2)
    for fd in (out, log, tells):
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["env"])
    from rapo_rllib.milvus import lite_server

    sys.argv = ["lite_server", *order["arguments"]]
    os._exit(lite_server.main())


def pytest_collection_finish(session: pytest.Session) -> None:
    """For all tests, whoever of them comes to import what starts servers."""
    if not session.config.getoption("pure"):
        from rapo_rllib.milvus import lite_lease

        forked = SimpleNamespace(Popen=ForkedServer, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
        lite_lease.subprocess = forked  # type: ignore[attr-defined]


@pytest.fixture
def brief_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers see sooner that nobody uses them any more."""
    monkeypatch.setattr(ForkedServer, "more", ("--poll-s", "0.2"))


@pytest.fixture
def lite_programs() -> Iterator[None]:
    """Servers are programs, as users start them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{LEASE}.subprocess", subprocess)
        yield
