"""Servers of Lite paths, forked where their imports are done: as programs of their own they take a second of CPU each to start.

Only those that a test's process starts, or what it forks: Ray's workers and the command line start programs, as users do. So do
tests with the fixture ``lite_programs``, and those that put another ``Popen`` in the place of :class:`ForkedServer`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import IO, Any

import pytest
from places import REPOSITORY, SUPPORT

LEASE = "rapo_rllib.milvus.lite.lease"
ENVIRONMENT = {**os.environ, "PYTHON_DOTENV_DISABLED": "1"}  # before any test changes it
IMPORTS = ("grpc", "milvus_lite.adapter.grpc.servicer", "pymilvus.grpc_gen.milvus_pb2_grpc", "rapo_rllib.milvus.lite.engine")


class ForkedServer:
    """What ``subprocess.Popen`` is to who starts a server."""

    more: tuple[str, ...] = ()  # arguments

    def __init__(self, command: Sequence[str], stderr: IO[bytes], env: dict[str, str], **_: Any) -> None:
        changed = [name for name in env if name.startswith("MILVUS_LITE_") and env[name] != ENVIRONMENT.get(name)]
        assert not changed, f"{changed} are read by imports: this test wants the fixture lite_programs"
        out, theirs = os.pipe()
        told, tells = os.pipe()
        order = json.dumps({"arguments": [*command[4:], *self.more], "env": env}).encode()
        socket.send_fds(template(), [order], [theirs, stderr.fileno(), tells])
        os.close(theirs), os.close(tells)
        with open(told) as pipe:
            said = pipe.read()
        assert said, "the template of the servers has ended"
        self.pid = int(said)
        self.stdout = open(out, "rb")  # noqa: SIM115 - closed by who reads it

    def wait(self) -> None:
        """Its parent, which does not wait for it either, is the template."""


class Template:
    """The process that has the imports; it ends with this one."""

    process: subprocess.Popen[bytes] | None = None
    orders: socket.socket


def template() -> socket.socket:
    """What takes orders; started where it is not there."""
    if Template.process is not None and Template.process.poll() is None:
        return Template.orders
    Template.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(SUPPORT)])}
    command = [sys.executable, "-c", f"import lite_starts; lite_starts.serve_orders({theirs.fileno()})"]
    apart = {"cwd": SUPPORT, "env": environment, "stdin": subprocess.DEVNULL, "start_new_session": True}
    Template.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], **apart)
    theirs.close()
    return Template.orders


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
            orders.close()
            try:
                status = _serve(json.loads(order), *fds)
            except Exception:
                traceback.print_exc()
                status = 1
            sys.exit(status)  # as a program ends: with all that threads and exits take
        for fd in fds:
            os.close(fd)


def _serve(order: dict[str, Any], out: int, log: int, tells: int) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.write(tells, str(os.getpid()).encode())
    os.dup2(out, 1), os.dup2(log, 2)
    for fd in (out, log, tells):
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["env"])
    from rapo_rllib.milvus.lite import server as lite_server

    sys.argv = ["lite_server", *order["arguments"]]
    return lite_server.main()


def pytest_collection_finish(session: pytest.Session) -> None:
    """For all tests, whoever of them comes to import what starts servers."""
    if not session.config.getoption("pure"):
        from rapo_rllib.milvus.lite import lease as lite_lease

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
