"""Secrets stay out of jobs: a job names the environment variable that holds a token or key; addresses hold no password.

Every value in a job reaches result files, checkpoints, loggers and logs. So the process that sends a secret reads it from its
own environment, each time. A secret that was put into a job by mistake is refused, and the message does not repeat it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

TOKEN_VARIABLE = "MILVUS_TOKEN"  # holds the token of a Milvus server, unless a job names another variable
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")  # a secret given in place of the variable's name seldom matches
_SECRET = re.compile(r"(?:(?:hf|api|auth|access|bearer)[_-])?(?:token|key|password|secret)|authorization|apikey", re.IGNORECASE)


def check_variable(name: Any, key: str, usual: str = "") -> None:
    """Refuse a value that is no name of an environment variable; it is not shown, for it may be the secret itself.

    Args:
        name: what the user gave.
        key: what the user calls it, for messages.
        usual: the variable to set instead, if there is a usual one.

    Raises:
        ValueError: naming the key and the fix.
    """
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        instead = f"set {usual}" if usual else "name the environment variable that you put it into"
        raise ValueError(
            f"{key} is no name of an environment variable in capitals (its value is not shown: if it is the secret itself, "
            f"take it out of the job and {instead})"
        )


def check_address(address: Any, key: str, instead: str) -> None:
    """Refuse an address that holds a user name or a password (neither is shown), or that is invalid, e.g. in its port.

    Args:
        address: what the user gave; anything but a text is left to other checks.
        key: what the user calls it, for messages.
        instead: what to do with user name and password instead, for messages.

    Raises:
        ValueError: naming the key and the fix.
    """
    try:
        holds = isinstance(address, str) and "@" in urlsplit(address).netloc
    except ValueError:  # not an address at all: without "@" it is refused below
        holds = "@" in address
    if holds:
        raise ValueError(
            f"{key} holds a user name or a password (not shown), which would stand in results, checkpoints and logs: "
            f"take them out, and {instead}"
        )
    try:
        _ = isinstance(address, str) and urlsplit(address).port
    except ValueError as error:
        raise ValueError(f"{key} = {address!r}: {error}") from error


def check_no_secret(values: Any, key: str, instead: str) -> None:
    """Refuse options, to be handed on, in which a text at any depth has the name of a secret; the text is not shown.

    Args:
        values: what the user gave, nested mappings included; anything but a mapping is left to other checks.
        key: what the user calls it, for messages.
        instead: what to do with the secret instead, for messages.

    Raises:
        ValueError: naming the key and the fix.
    """
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, str) and value and _SECRET.fullmatch(str(name)):
            raise ValueError(
                f"{key}.{name} (its value is not shown): what stands there reaches results, checkpoints or loggers. Take "
                f"it out, and {instead}"
            )
        check_no_secret(value, f"{key}.{name}", instead)


def secret_of(variable: str | None) -> str:
    """Return the value of the environment variable; "" if it is not set, or none is named."""
    return os.environ.get(variable, "") if variable else ""
