"""``rapo/openenv``: an environment on an OpenEnv server; a question is a seed, each environment object has a WebSocket.

{"type": "reset", "data": {"seed": 3}}, {"type": "step", "data": {the action}}, {"type": "close"}
{"type": "observation", "data": {"observation": {...}, "reward": 0.5, "done": false}}, {"type": "error", "data": {...}}
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NoReturn

from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.external.base import ExternalEnv, ExternalOptions, Played, SeededOptions
from rapo_rllib.envs.options import installed, read_options
from rapo_rllib.errors import EnvError
from rapo_rllib.services.credentials import check_address, check_variable, secret_of
from rapo_rllib.settings.knobs import knob
from rapo_rllib.types import Question
from rapo_rllib.validation import require

_REFUSED = "VALIDATION_ERROR"
_CAPACITY = "CAPACITY_REACHED"
_MAX_BYTES = 64 * 2**20
_CLOSE_S = 1.0  # for a server to confirm the end of a session
ANSWER_S = 60.0  # for a server to answer a message: below the deadline of a step, 120 s
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class ServerError(Exception):
    """The server died, hung, refused or sent nonsense; the session is unusable."""


class RefusedActionError(Exception):
    """The server's environment refuses the action; the session goes on."""


@dataclass(frozen=True)
class Told:
    """A server's answer to a message."""

    observation: Mapping[str, Any]
    reward: float
    done: bool


class OpenEnvSession:
    """A session with a server, which keeps an environment for it; each message is answered within a deadline.

    Args:
        address: ``ws://host:port/ws``.
        token: sent as a bearer token; empty: none is sent.

    Raises:
        ServerError: the server cannot be reached.
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
        """Send ``reset`` or ``step`` and wait for the environment's answer.

        Raises:
            ServerError: no answer in time, or no valid one; close the session then.
            RefusedActionError: the action does not have the form that the environment requires.
        """
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            with contextlib.suppress(ConnectionClosed):  # a server that refuses sends the reason and closes: read it
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


@dataclass(frozen=True)
class OpenEnvOptions(SeededOptions):
    """The ``env_config`` keys of ``rapo/openenv``."""

    url: str = knob("", "address of the server, for example `http://127.0.0.1:8000`")
    token_env: str | None = knob(None, "environment variable with the server's bearer token")
    action_field: str | None = knob(
        "message", "field of the server's action for the policy's text; None: the policy writes the whole action, as JSON"
    )
    observation_field: str | None = knob(
        None, "field of the server's observation that the policy reads; None: its only text, or all of it as JSON"
    )
    reset: dict = knob(dict, "arguments of each reset beside the seed, for example {task: easy}")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address(self.url, "env_config.url", "name a variable in token_env")
        scheme = self.url.partition("://")[0]
        require(scheme in _SCHEMES, "url", self.url, f"must begin with {', '.join(f'{name}://' for name in _SCHEMES)}")
        require("seed" not in self.reset, "reset", self.reset, "leave seed out: see num_train")
        if self.token_env is not None:
            check_variable(self.token_env, "env_config.token_env")
            require(bool(secret_of(self.token_env)), "token_env", self.token_env, "is not set: set it where you start the job")


class OpenEnv(ExternalEnv):
    """An environment of an OpenEnv server. Its session is kept from episode to episode, until the server fails.

    Raises:
        ValueError: the server does not answer.
    """

    options_class: ClassVar[type[ExternalOptions]] = OpenEnvOptions

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(env_config, **kwargs)
        _check_server(self.options.url, self.options.token_env)
        self._session: OpenEnvSession | None = None

    def __deepcopy__(self, memo: Any) -> NoReturn:
        """Refuse a copy: the server keeps the episode's state, so trajectories cannot branch."""
        raise EnvError("its state is with a server, which keeps it for one trajectory")

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> SeedQuestions:
        """Return the seeds of ``split``. A server that ignores seeds begins each episode as it likes."""
        return read_options(OpenEnvOptions, env_config).questions(split)

    def begin(self, question: Question) -> str:
        """Reset the server's environment, in a new session if the last one was lost between episodes."""
        data = {**self.options.reset, **({} if question.seed is None else {"seed": question.seed})}
        if self._session is not None:
            try:
                return self._shown(self._session.ask("reset", data).observation)
            except ServerError:
                self.close()
        try:
            self._session = _session(self.options.url, self.options.token_env)
            return self._shown(self._session.ask("reset", data).observation)
        except (ServerError, RefusedActionError) as error:
            self.close()
            raise EnvError(f"OpenEnv, {self.options.url!r}: reset: {error}") from error

    def play(self, action: str) -> Played:
        """Play one step. A malformed action costs the policy the step; a server that fails costs the trajectory."""
        try:
            written = self._written(action)
        except ValueError as error:
            return Played(f"Error: an action is a JSON object: {error}", info={"tool_error": "malformed"})
        if self._session is None:
            raise EnvError(f"OpenEnv, {self.options.url!r}: the session is lost")
        try:
            told = self._session.ask("step", written)
        except RefusedActionError as error:
            return Played(f"Error: {error}", info={"tool_error": "arguments"})
        except ServerError as error:
            self.close()
            raise EnvError(f"OpenEnv, {self.options.url!r}: step: {error}") from error
        return Played(self._shown(told.observation), told.reward, terminated=told.done)

    def _written(self, action: str) -> dict[str, Any]:
        """Build the server's action from the policy's text. Raises ``ValueError`` if a JSON object is needed and missing."""
        if self.options.action_field is not None:
            return {self.options.action_field: action}
        read = json.loads(action)
        if not isinstance(read, dict):
            raise ValueError(f"got {action[:80]}")
        return read

    def _shown(self, observation: Mapping[str, Any]) -> str:
        """Return the part of an observation that the policy reads."""
        name = self.options.observation_field
        if name is None:
            texts = [value for value in observation.values() if isinstance(value, str)]
            return texts[0] if len(texts) == 1 else json.dumps(dict(observation), ensure_ascii=False)
        if name not in observation:
            raise EnvError(
                f"env_config.observation_field = {name!r}: the observations of {self.options.url!r} have "
                f"{', '.join(observation) or 'no fields'}"
            )
        value = observation[name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _session(url: str, token_env: str | None) -> OpenEnvSession:
    scheme, _, rest = url.rstrip("/").partition("://")
    return OpenEnvSession(f"{_SCHEMES[scheme]}://{rest}/ws", secret_of(token_env))


@lru_cache
def _check_server(url: str, token_env: str | None) -> None:
    """Raise ``ValueError`` if the package is missing or the server does not answer; one that answered is not asked again."""
    installed("websockets", "rapo/openenv", "websockets", "openenv")
    try:
        _session(url, token_env).close()
    except ServerError as error:
        raise ValueError(f"env_config.url = {url!r} does not answer: {error}") from error
