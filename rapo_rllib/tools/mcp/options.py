"""The keys of ``{mcp: ...}`` in ``env_config.tools``, checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rapo_rllib.services.credentials import check_address, check_variable, secret_of
from rapo_rllib.validation import MOST, MOST_SECONDS, refuse_unknown_keys

_KEY = "env_config.tools: mcp"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
STATES = ("trajectory", "none")


@dataclass(frozen=True)
class McpOptions:
    """Options of a server: the way to reach it, and what it keeps.

    Raises:
        ValueError: naming the key, its value and the fix; what may be a secret is not shown.
    """

    command: str | None = None  # a program that speaks MCP over stdin and stdout
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None  # variables of the program; nothing secret
    env_from: tuple[str, ...] = ()  # names of variables of this process that the program gets, such as those of secrets
    cwd: str | None = None
    url: str | None = None  # of a server over HTTP, in place of a command
    token_env: str | None = None  # variable with the token that goes to the URL as a bearer's
    only: tuple[str, ...] = ()  # names of tools that the policy sees; none: all
    state: str = "trajectory"  # what ends with a session: what a trajectory did there; none: nothing, so sessions are shared
    state_key: str | None = None  # an argument that keeps trajectories apart, filled in here; sessions are shared then
    state_end: str | None = None  # a tool that is called with a trajectory's state_key at its end, for the server to forget it
    sessions: int = 4  # that are shared, where they are
    start_timeout_s: float = 60.0  # until a server must have told its tools

    @classmethod
    def of(cls, given: Any) -> McpOptions:
        """The options in an entry."""
        if not isinstance(given, Mapping):
            raise ValueError(f"{_KEY} = {given!r}: write {{command: program, args: [...]}} or {{url: https://...}}")
        refuse_unknown_keys(given, [f.name for f in fields(cls)], f"{_KEY}.")
        values = dict(given)
        for name in ("args", "env_from", "only"):
            value = values.get(name, ())
            if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
                raise ValueError(f"{_KEY}.{name} = {value!r}: must be a list of texts")
            values[name] = tuple(value)
        return cls(**values)

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError(f"{_KEY}: give command or url, one of them (command = {self.command!r}, url = {self.url!r})")
        for name in ("command", "url", "cwd", "state_key", "state_end"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"{_KEY}.{name} = {value!r}: must be a text")
        self._check_secrets()
        self._check_numbers()
        if self.state not in STATES:
            raise ValueError(f"{_KEY}.state = {self.state!r}: must be one of {', '.join(STATES)}")
        if self.state_end is not None and self.state_key is None:
            raise ValueError(f"{_KEY}.state_end = {self.state_end!r}: name the argument that it is called with in state_key")
        if self.url is not None and (self.args or self.env or self.env_from or self.cwd):
            raise ValueError(f"{_KEY}: args, env, env_from and cwd go with command, not with url: leave them out")

    def _check_secrets(self) -> None:
        check_address(self.url, f"{_KEY}.url", "name a variable in token_env")
        named = [name for name, _ in parse_qsl(urlsplit(self.url or "").query) if _SECRET_NAME.search(name)]
        named += [
            arg.partition("=")[0] for arg in self.args if arg.startswith("-") and _SECRET_NAME.search(arg.partition("=")[0])
        ]
        if named:
            instead = "name a variable in token_env" if self.url else "let the program read a variable, and name it in env_from"
            raise ValueError(
                f"{_KEY}.{'url' if self.url else 'args'}: {named[0]} (its value is not shown): what stands in a job reaches "
                f"results, checkpoints and loggers. Take it out, and {instead}"
            )
        if self.env is not None and not isinstance(self.env, Mapping):
            raise ValueError(f"{_KEY}.env = {self.env!r}: must be a mapping of variables to texts")
        for name, value in (self.env or {}).items():
            if not isinstance(value, str):
                raise ValueError(f"{_KEY}.env.{name} = {value!r}: must be a text")
            if _SECRET_NAME.search(name):
                raise ValueError(
                    f"{_KEY}.env.{name} (its value is not shown): what stands in a job reaches results, checkpoints and "
                    "loggers. Take it out, set the variable where you start the job, and name it in env_from"
                )
        for variable in (*self.env_from, *filter(None, [self.token_env])):
            check_variable(variable, f"{_KEY}.{'token_env' if variable == self.token_env else 'env_from'}")
            if not secret_of(variable):
                raise ValueError(f"{_KEY}: the environment variable {variable} is not set: set it where you start the job")

    def _check_numbers(self) -> None:
        if isinstance(self.sessions, bool) or not isinstance(self.sessions, int) or not 1 <= self.sessions <= MOST:
            raise ValueError(f"{_KEY}.sessions = {self.sessions!r}: must be a whole number at least 1")
        if (
            isinstance(self.start_timeout_s, bool)
            or not isinstance(self.start_timeout_s, int | float)
            or not 0 < self.start_timeout_s <= MOST_SECONDS
        ):
            raise ValueError(
                f"{_KEY}.start_timeout_s = {self.start_timeout_s!r}: must be a positive number, at most {MOST_SECONDS:g}"
            )

    @property
    def shown(self) -> str:
        """The name of the server in messages."""
        return self.url.partition("?")[0] if self.url else " ".join([str(self.command), *self.args])

    @property
    def is_shared(self) -> bool:
        """Whether trajectories share sessions."""
        return self.state == "none" or self.state_key is not None

    @property
    def keeps_state(self) -> bool:
        """Whether a server may keep what a trajectory did."""
        return self.state != "none" or self.state_key is not None

    @property
    def ends_with_session(self) -> bool:
        """Whether what it keeps is lost with its session, and with it the trajectory."""
        return self.state != "none"

    def environment(self) -> dict[str, str]:
        """Variables of the program beside the few that all programs get."""
        return {**(self.env or {}), **{name: os.environ[name] for name in self.env_from}}
