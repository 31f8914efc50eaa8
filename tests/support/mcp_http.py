"""MCP servers over HTTP for tests: real processes on a port of this machine, which can be killed and started again there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_WAIT_S = 250  # a machine in shared use starts a server slowly


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def url_of(port: int) -> str:
    """Where the server on a port answers."""
    return f"http://127.0.0.1:{port}/mcp"


@contextmanager
def http_servers(program: str) -> Iterator[Callable[..., subprocess.Popen]]:
    """A function that starts ``program`` on a port, with variables by name, and waits until it listens; all end at the end."""
    started: list[subprocess.Popen] = []

    def start(port: int, **variables: str) -> subprocess.Popen:
        started.append(subprocess.Popen([sys.executable, program, str(port)], env={**os.environ, **variables}))
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline and started[-1].poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return started[-1]
            time.sleep(0.1)
        raise AssertionError(f"{program} does not listen on port {port}")

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
