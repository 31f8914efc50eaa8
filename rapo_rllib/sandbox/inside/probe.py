"""Finds out which layers this machine gives, by locking throw-away children in: a layer counts if it really went on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from . import landlock, namespaces, seccomp, settings
from .jail import NAMESPACES, PIDFD, Limits, set_limits


def main() -> None:
    """Print ``{layer: null or why not}``; its settings are the files that a new root would show."""
    files = settings.take()
    tries: dict[str, Callable[[], None]] = {
        "rlimits": lambda: set_limits(Limits(10, 2**30, 2**20, 10, False), 2**30),
        "landlock": lambda: landlock.Ruleset().lock(),
        "seccomp": seccomp.lock,
        NAMESPACES: lambda: _try_namespaces(files),
        PIDFD: lambda: os.close(os.pidfd_open(os.getpid())),
    }
    print(json.dumps({layer: _in_child(attempt) for layer, attempt in tries.items()}))  # noqa: T201


def _try_namespaces(files: dict[str, Any]) -> None:
    namespaces.enter()

    def enter_root() -> None:  # the first process of the new namespace is the next one
        namespaces.new_root(files["shown"], files["hidden"], files["modules"])
        namespaces.private_scratch(2**20, 10)

    error = _in_child(enter_root)
    if error is not None:
        raise OSError(error)


def _in_child(attempt: Callable[[], None]) -> str | None:
    """Tell what went wrong in a child that made the attempt."""
    incoming, outgoing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
        except (OSError, ValueError) as error:
            os.write(outgoing, str(getattr(error, "strerror", None) or error).encode())
            os._exit(1)
        os._exit(0)
    os.close(outgoing)
    with open(incoming, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return None if status == 0 else said or f"a child that tried ended with status {status}"
