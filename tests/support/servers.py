"""Programs that serve on a port of this machine, for tests: real processes, which can be killed and started again there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

from places import SUPPORT

_WAIT_S = 250  # a machine in shared use starts a server slowly


class Served:
    """A program of this folder that gets its port, and ``arguments``; it ends with the block that it is used in."""

    def __init__(self, program: str, *arguments: str, path: str = "") -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{path}"
        self._command = [sys.executable, str(SUPPORT / program), str(self.port), *arguments]
        self.process: subprocess.Popen | None = None

    def start(self, **variables: str) -> None:
        """Start it with these variables, once more if it ran before, and wait until it listens."""
        self.stop()
        self.process = subprocess.Popen(self._command, env={**os.environ, **variables})
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"{self._command} does not listen")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def guarded(app: Any, token: str | None) -> Any:
    """``app`` for those who bring the token, where there is one."""

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        if (
            dict(scope.get("headers", ())).get(b"authorization", b"").decode() == f"Bearer {token}"
            or scope["type"] == "lifespan"
        ):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return checked if token else app
