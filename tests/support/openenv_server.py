"""Starts the OpenEnv server of ``openenv_house.py`` for a test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection, socket


@contextmanager
def house_server(*sessions: str, port: int = 0, **variables: str) -> Iterator[str]:
    """The address of a server that takes connections, on a free port unless one is named."""
    if not port:
        with socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("openenv_house.py")), str(port), *sessions]
    process = subprocess.Popen(command, env={**os.environ, **variables})
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "the house does not serve"
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
