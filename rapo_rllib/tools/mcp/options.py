"""The keys of ``{mcp: ...}`` in ``env_config.tools``, checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qsl, urlsplit

from rapo_rllib.services.credentials import check_address, check_variable, secret_of
from rapo_rllib.settings.knobs import Knobs, knob

_KEY = "env_config.tools: mcp"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True)
class McpOptions(Knobs):
    """Options of a server: the way to reach it, and what it keeps.

    Raises:
        ValueError: a key is wrong; the message names key, value and fix, but shows nothing that may be a secret.
    """

    where: ClassVar[str] = f"{_KEY}."

    command: str | None = knob(None, "a program that speaks MCP over stdin and stdout")
    args: tuple[str, ...] = knob((), "arguments of the program", may_be_empty=True)
    env: Mapping[str, str] | None = knob(
        None, "its environment variables; nothing secret", rule="a mapping of variables to texts"
    )
    env_from: tuple[str, ...] = knob((), "environment variables of this process that are passed on, such as secrets")
    cwd: str | None = knob(None, "working folder of the program")
    url: str | None = knob(None, "address of a server over HTTP, instead of a command")
    token_env: Any = knob(None, "environment variable with the server's bearer token")
    only: tuple[str, ...] = knob((), "names of the tools that the policy sees; empty: all")
    state: Literal["trajectory", "none"] = knob(
        "trajectory", "a session for each `trajectory`, or shared ones without state (`none`)", rule="one of trajectory, none"
    )
    state_key: str | None = knob(None, "argument that separates trajectories in shared sessions, hidden from the policy")
    state_end: str | None = knob(None, "tool that is called with `state_key` at a trajectory's end")
    sessions: int | None = knob(None, "most sessions of a process; None: 4 shared ones, or 64 of trajectories", at_least=1)
    start_timeout_s: float = knob(60.0, "seconds until the server must have listed its tools", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.command is None) == (self.url is None):
            raise ValueError(f"{_KEY}: give command or url, one of them (command = {self.command!r}, url = {self.url!r})")
        self._check_secrets()
        if self.state_end is not None and self.state_key is None:
            raise ValueError(f"{_KEY}.state_end = {self.state_end!r}: name the argument that it is called with in state_key")
        if self.url is not None and (self.args or self.env or self.env_from or self.cwd):
            raise ValueError(f"{_KEY}: args, env, env_from and cwd go with command, not with url: leave them out")

    def _check_secrets(self) -> None:
        check_address(self.url, f"{_KEY}.url", "name a variable in token_env")
        named = {
            "url": [name for name, _ in parse_qsl(urlsplit(self.url or "").query)],
            "args": [arg.partition("=")[0] for arg in self.args if arg.startswith("-")],
            "env": list(self.env or ()),
        }
        instead = "name a variable in token_env" if self.url else "set a variable where you start the job, named in env_from"
        for key, name in ((key, name) for key, names in named.items() for name in names if _SECRET_NAME.search(name)):
            raise ValueError(
                f"{_KEY}.{key}: {name} (its value is not shown): what stands in a job reaches results, checkpoints and "
                f"loggers. Take it out, and {instead}"
            )
        for name, value in (self.env or {}).items():
            if not isinstance(value, str):
                raise ValueError(f"{_KEY}.env.{name} = {value!r}: must be a text")
        for variable in (*self.env_from, *filter(None, [self.token_env])):
            check_variable(variable, f"{_KEY}.{'token_env' if variable == self.token_env else 'env_from'}")
            if not secret_of(variable):
                raise ValueError(f"{_KEY}: the environment variable {variable} is not set: set it where you start the job")

    @property
    def shown(self) -> str:
        """The name of the server in messages."""
        return self.url.partition("?")[0] if self.url else " ".join([str(self.command), *self.args])

    @property
    def num_sessions(self) -> int:
        """The most sessions of a process: ``sessions``, or its default."""
        return (4 if self.is_shared else 64) if self.sessions is None else self.sessions

    @property
    def is_shared(self) -> bool:
        """Whether trajectories share sessions."""
        return self.state == "none" or self.state_key is not None

    @property
    def keeps_state(self) -> bool:
        """Whether the server may keep state of a trajectory."""
        return self.state != "none" or self.state_key is not None

    @property
    def ends_with_session(self) -> bool:
        """Whether the server's state is lost with its session, so that the trajectory cannot go on."""
        return self.state != "none"

    def environment(self) -> dict[str, str]:
        """Collect the environment variables of the program, beside the few that all programs get."""
        return {**(self.env or {}), **{name: os.environ[name] for name in self.env_from}}
