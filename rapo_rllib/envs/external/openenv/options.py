"""The keys of ``env_config`` of ``rapo/openenv``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rapo_rllib.envs.external.base import SeededOptions
from rapo_rllib.services.credentials import check_address, check_variable, secret_of
from rapo_rllib.settings.knobs import knob
from rapo_rllib.validation import require

PORT = "{port}"
_SCHEMES = ("http://", "https://", "ws://", "wss://")


@dataclass(frozen=True)
class OpenEnvOptions(SeededOptions):
    """Keys of ``env_config`` of ``rapo/openenv``."""

    url: str | None = knob(None, "of a server, for example `http://127.0.0.1:8000`")
    command: tuple[str, ...] = knob(
        (), "a program that serves, in place of `url`, with `{port}` where it reads its port", rule="a list of texts"
    )
    cwd: str | None = knob(None, "the folder that `command` runs in")
    token_env: str | None = knob(None, "variable of the environment with the token that goes to the server as a bearer's")
    action_field: str | None = knob(
        "message", "of the server's action, which gets what the policy wrote; None: the policy writes the whole action, as JSON"
    )
    action: dict = knob(dict, "other fields of each action, for example {kind: text}")
    observation_field: str | None = knob(
        None, "of the server's observation, which the policy reads; None: its one text, or all of it as JSON"
    )
    reset: dict = knob(dict, "what is sent with each reset beside the seed, for example {task: easy}")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.url is None) != (not self.command),
            "url",
            self.url,
            f"give url or command, one of them (command = {list(self.command)!r})",
        )
        if self.url is not None:
            check_address(self.url, "env_config.url", "name a variable in token_env")
            require(self.url.startswith(_SCHEMES), "url", self.url, f"must begin with {', '.join(_SCHEMES)}")
        elif not any(PORT in part for part in self.command):
            require(
                False, "command", list(self.command), f"must hold {PORT}, for example [python, server.py, --port, '{PORT}']"
            )
        require("seed" not in self.reset, "reset", self.reset, "leave seed out: see num_train")
        for name in ("action", "reset"):
            _check_json(name, getattr(self, name))
        if self.token_env is not None:
            check_variable(self.token_env, "env_config.token_env")
            require(bool(secret_of(self.token_env)), "token_env", self.token_env, "is not set: set it where you start the job")

    @property
    def shown(self) -> str:
        """The server's name in messages."""
        return self.url or " ".join(self.command)


def _check_json(name: str, value: Any) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        require(False, name, value, f"is no JSON: {error}")
