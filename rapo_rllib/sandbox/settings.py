"""Options of the python tool that say what its sandbox lets code import, and how strict it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

NAMESPACES = ("auto", "required", "off")


@dataclass(frozen=True)
class SandboxSettings:
    """Equal settings share one sandbox in a process.

    Raises:
        ValueError: naming key, value and fix.
    """

    allow_weak_sandbox: bool = False  # do without layers that this machine does not give
    namespaces: str = "auto"
    preload: tuple[str, ...] = ("numpy", "sympy")  # can be imported; the zygote loads them once
    packages: tuple[str, ...] = ()  # distributions that code can import besides those of ``preload``

    def __post_init__(self) -> None:
        weak = self.allow_weak_sandbox
        require(self.namespaces in NAMESPACES, "namespaces", self.namespaces, f"must be one of {', '.join(NAMESPACES)}")
        require(isinstance(weak, bool), "allow_weak_sandbox", weak, "must be true or false")


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
        raise ValueError(f"env_config.tools: python option {key} = {value!r}: {rule}")
