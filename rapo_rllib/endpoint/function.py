"""A user's function that is an agent: found by its import path, and called here or in a process of its own.

What a process of its own loads before it can call the function is this file and what it imports, so that is little.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rapo_rllib.validation import require

GIVEN = ("question", "base_url", "task")  # arguments of an agent's function, each if it takes it


@dataclass(frozen=True)
class Ended:
    """The end of an agent."""

    returned: Any = None
    error: str = ""
    late: bool = False  # its deadline was over


def agent_function(path: str) -> Callable[..., Any]:
    """The function at an import path. Raises ``ValueError`` naming it."""
    module, _, name = path.partition(":")
    require(bool(module and name), "agent", path, "must be an import path, package.module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"env_config.agent: cannot import {path!r}: {error}") from error
    require(callable(found), "agent", path, "is no function")
    function: Callable[..., Any] = found
    return function


def call_function(path: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call an agent's function with those of the ``given`` arguments that it takes, and all ``options``; await a coroutine."""
    function = agent_function(path)
    parameters = inspect.signature(function).parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    returned = function(**{name: value for name, value in given.items() if any_name or name in parameters}, **options)
    return asyncio.run(_result(returned)) if inspect.isawaitable(returned) else returned


async def _result(returned: Any) -> Any:
    return await returned


def call_for_parent() -> None:
    """Call the function that standard input names; its end goes to standard output, what it prints to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.path[:] = pickle.load(sys.stdin.buffer)
    try:
        ended = Ended(call_function(*pickle.load(sys.stdin.buffer)))
    except (Exception, SystemExit) as error:
        ended = Ended(error=f"the agent failed: {error!r}")
    with out:
        pickle.dump(ended, out)
