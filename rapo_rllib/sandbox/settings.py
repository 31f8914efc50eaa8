"""Options of the python tool that choose its sandbox, and how strict it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rapo_rllib.services.credentials import check_address, check_variable

BACKENDS = ("forkserver", "remote")
NAMESPACES = ("auto", "required", "off")
_WHERE = "env_config.tools: python option "
FORMATS = ("rapo", "sandbox_fusion")


@dataclass(frozen=True)
class SandboxSettings:
    """Equal settings share one sandbox in a process.

    Raises:
        ValueError: naming key, value and fix.
    """

    backend: str = "forkserver"
    allow_weak_sandbox: bool = False  # do without layers that this machine does not give
    namespaces: str = "auto"
    preload: tuple[str, ...] = ("numpy", "sympy")  # can be imported; the forkserver loads them once
    packages: tuple[str, ...] = ()  # distributions that code can import besides those of ``preload``
    remote_url: str | None = None
    remote_token_env: str | None = None  # name of the environment variable that holds the bearer token
    remote_format: str = "rapo"

    def __post_init__(self) -> None:
        for key, choices in (("backend", BACKENDS), ("namespaces", NAMESPACES), ("remote_format", FORMATS)):
            require(getattr(self, key) in choices, key, getattr(self, key), f"must be one of {', '.join(choices)}")
        require(
            isinstance(self.allow_weak_sandbox, bool), "allow_weak_sandbox", self.allow_weak_sandbox, "must be true or false"
        )
        remote = self.backend == "remote"
        for key in ("remote_url", "remote_token_env"):
            value = getattr(self, key)
            require(value is None or isinstance(value, str), key, value, "must be a text")
            require(value is None or remote, key, value, "needs backend: remote")
        require(not remote or bool(self.remote_url), "backend", self.backend, "needs remote_url, the address of the service")
        check_address(self.remote_url, f"{_WHERE}remote_url", "put a token into the variable that remote_token_env names")
        if self.remote_token_env is not None:
            check_variable(self.remote_token_env, f"{_WHERE}remote_token_env")
        starts = ("http://", "https://")
        require(
            not remote or str(self.remote_url).startswith(starts), "remote_url", self.remote_url, "must begin with http(s)://"
        )


def names(key: str, value: Any) -> tuple[str, ...]:
    """A list of names as a tuple.

    Raises:
        ValueError: it is something else.
    """
    listed = isinstance(value, Iterable) and not isinstance(value, str)
    require(listed and all(isinstance(name, str) and name for name in value), key, value, "must be a list of names")
    return tuple(value)


def require(holds: bool, key: str, value: Any, rule: str) -> None:
    """Raise the error of a wrong option."""
    if not holds:
        raise ValueError(f"{_WHERE}{key} = {value!r}: {rule}")
