"""One WebSocket with an OpenEnv server: messages out, answers in, each within a deadline.

{"type": "reset", "data": {"seed": 3}}, {"type": "step", "data": {the action}}, {"type": "close"}
{"type": "observation", "data": {"observation": {...}, "reward": 0.5, "done": false}}, {"type": "error", "data": {...}}
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_REFUSED = "VALIDATION_ERROR"
_CAPACITY = "CAPACITY_REACHED"
_MAX_BYTES = 64 * 2**20
_CLOSE_S = 1.0  # for a server to say goodbye
ANSWER_S = 60.0  # until a server must have answered a message: below the deadline of a step, 120 s


class ServerError(Exception):
    """The server died, hung, refused or sent nonsense; the session is unusable."""


class RefusedActionError(Exception):
    """The server's environment refuses the action; the session goes on."""


@dataclass(frozen=True)
class Told:
    """A server's description of its environment."""

    observation: Mapping[str, Any]
    reward: float
    done: bool


class OpenEnvSession:
    """A session, in which the server keeps an environment.

    Args:
        address: ``ws://host:port/ws``.
        token: goes to the server as a bearer's, if there is one.

    Raises:
        ServerError: it did not, and why.
    """

    def __init__(self, address: str, token: str) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        headers = {"Authorization": f"Bearer {token}"} if token else {}
        how: dict[str, Any] = {"open_timeout": ANSWER_S, "close_timeout": _CLOSE_S, "max_size": _MAX_BYTES, "proxy": None}
        self._open = contextlib.ExitStack()
        try:
            self._socket = self._open.enter_context(connect(address, additional_headers=headers, **how))
        except (OSError, WebSocketException) as error:
            raise ServerError(f"the server cannot be reached: {error}") from error

    def ask(self, kind: str, data: Mapping[str, Any]) -> Told:
        """Send ``reset`` or ``step`` and wait for what the environment says.

        Raises:
            ServerError: no answer in time, or one that is none; the session is to be closed.
            RefusedActionError: the action has not the form that the environment wants.
        """
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            with contextlib.suppress(ConnectionClosed):  # a server that refuses says why, and closes
                self._socket.send(json.dumps({"type": kind, "data": dict(data)}))
            raw = self._socket.recv(timeout=ANSWER_S)
        except TimeoutError as error:
            raise ServerError(f"the server has not answered within {ANSWER_S:g} s") from error
        except (OSError, WebSocketException) as error:
            raise ServerError(f"the server has died, or ended the session: {error}") from error
        return _read(raw)

    def close(self) -> None:
        """End the session; may be called twice."""
        from websockets.exceptions import WebSocketException

        with contextlib.suppress(OSError, WebSocketException):
            self._socket.send(json.dumps({"type": "close"}))
        with contextlib.suppress(OSError, WebSocketException):
            self._open.close()


def _read(raw: str | bytes) -> Told:
    try:
        message = json.loads(raw)
        data = message["data"]
        if message["type"] == "error":
            raise _error(data)
        return Told(dict(data["observation"]), float(data.get("reward") or 0.0), bool(data.get("done")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ServerError(f"the server sent no message of OpenEnv: {raw[:200]!r}") from error


def _error(data: Mapping[str, Any]) -> Exception:
    code, message = data["code"], data["message"]
    if code == _REFUSED:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in data.get("errors", ()))
        return RefusedActionError("; ".join(faults) or message)
    advice = (
        "; start it with more sessions (max_concurrent_envs), or run fewer trajectories at once" if code == _CAPACITY else ""
    )
    return ServerError(f"the server's environment failed: {message} ({code}){advice}")
