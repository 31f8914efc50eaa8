"""The server of a job: at an address, or a program that is started here, once in a process, and again if it died or hangs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from socket import socket
from typing import IO

from rapo_rllib.envs.external.openenv.options import PORT, OpenEnvOptions
from rapo_rllib.envs.external.openenv.session import ANSWER_S, OpenEnvSession, ServerError
from rapo_rllib.services.credentials import secret_of

_KEEPER = Path(__file__).with_name("keeper.py")
START_S = 120.0  # until a program must serve: it may have to load a model
_LOOK_EVERY_S = 0.1
_END_S = 10.0


class OpenEnvServer:
    """Where sessions are begun.

    Raises:
        ValueError: it does not answer.
    """

    def __init__(self, options: OpenEnvOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._program: _Program | None = None
        try:
            self.session().close()
        except ServerError as error:
            key = "url" if options.url is not None else "command"
            raise ValueError(f"env_config.{key} = {options.shown!r} does not answer: {error}") from error

    def session(self) -> OpenEnvSession:
        """A new one. A program that has died, or takes no connection, is started again.

        Raises:
            ServerError: none can be begun.
        """
        if self._options.url is not None:
            return self._connected(self._options.url, ANSWER_S)
        with self._lock:
            if self._program is not None and self._program.alive:
                try:
                    return self._connected(self._program.url, ANSWER_S)
                except ServerError:
                    self._program.end()
            self._program = _Program(self._options)
            return self._started(self._program, time.monotonic() + START_S)

    def _started(self, program: _Program, deadline: float) -> OpenEnvSession:
        while True:
            try:
                return self._connected(program.url, max(deadline - time.monotonic(), _LOOK_EVERY_S))
            except ServerError as error:
                if not program.alive:
                    raise ServerError(f"the program has ended{program.said()}") from error
                if time.monotonic() > deadline:
                    program.end()
                    raise ServerError(f"it does not serve within {START_S:g} s{program.said()}") from error
            time.sleep(_LOOK_EVERY_S)

    def _connected(self, url: str, timeout_s: float) -> OpenEnvSession:
        scheme, _, rest = url.rstrip("/").partition("://")
        address = f"{ {'http': 'ws', 'https': 'wss'}.get(scheme, scheme) }://{rest}/ws"
        return OpenEnvSession(address, secret_of(self._options.token_env), timeout_s)


class _Program:
    """The program, on a port of its own. It ends with this object, and with this process, however that ends."""

    def __init__(self, options: OpenEnvOptions) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (what it writes, for as long as it lives)
        command = [part.replace(PORT, str(port)) for part in options.command]
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_KEEPER), *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            cwd=options.cwd,
        )
        self._end = weakref.finalize(self, _ended, self._process, self._log)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """End it; may be called twice."""
        self._end()

    def said(self) -> str:
        """Its last line, for messages."""
        if self._log.closed:
            return ""
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return f" (it wrote: {lines[-1][:200]})" if lines else ""


def _ended(process: subprocess.Popen[bytes], log: IO[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()  # its keeper ends it
    with contextlib.suppress(subprocess.TimeoutExpired):  # a slow one is left to its keeper, without which nobody would end it
        process.wait(_END_S)
    log.close()


def _free_port() -> int:
    with socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


_servers: weakref.WeakValueDictionary[str, OpenEnvServer] = weakref.WeakValueDictionary()
_servers_lock = threading.Lock()


def shared_server(options: OpenEnvOptions) -> OpenEnvServer:
    """The one of this process for ``options``, until nobody has it. Raises ``ValueError`` if it does not answer."""
    where = (options.url, options.command, options.cwd, options.token_env)
    with _servers_lock:
        server = _servers.get(repr(where))
        if server is None:
            server = _servers[repr(where)] = OpenEnvServer(options)
        return server
