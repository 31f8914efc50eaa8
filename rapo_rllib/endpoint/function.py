"""A user's function that is an agent: found by its import path, and called on a thread, with a deadline.

start_agent --base URL--> function --what it returned, or its error--> Ended
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rapo_rllib.validation import require

GIVEN = ("question", "base_url", "task")  # arguments that an agent's function is passed, each if it takes it


@dataclass(frozen=True)
class Ended:
    """The end of an agent."""

    returned: Any = None
    error: str = ""
    late: bool = False  # its deadline was over


def agent_function(path: str) -> Callable[..., Any]:
    """Import the function at an import path. Raises ``ValueError`` naming the path."""
    module, _, name = path.partition(":")
    require(bool(module and name), "agent", path, "must be an import path, package.module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"env_config.agent: cannot import {path!r}: {error}") from error
    require(callable(found), "agent", path, "is no function")
    function: Callable[..., Any] = found
    return function


def bound(function: Callable[..., Any], given: Mapping[str, Any], options: Mapping[str, Any]) -> inspect.BoundArguments:
    """Bind the ``given`` arguments that a function takes, and all ``options``. Raises ``TypeError`` as a call does."""
    signature = inspect.signature(function)
    any_name = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    taken = {name: value for name, value in given.items() if any_name or name in signature.parameters}
    return signature.bind(**taken, **options)


def call_function(path: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call an agent's function; if it returns a coroutine, await that."""
    function = agent_function(path)
    arguments = bound(function, given, options)
    returned = function(*arguments.args, **arguments.kwargs)
    return asyncio.run(_result(returned)) if inspect.isawaitable(returned) else returned


async def _result(returned: Any) -> Any:
    return await returned


def start_agent(call: Callable[[], Any], timeout_s: float, tell: Callable[[Ended], None]) -> threading.Timer:
    """Call an agent on a thread; return its deadline, which the caller cancels.

    Args:
        call: runs the agent, and returns what the agent returns.
        timeout_s: from the agent's start to its end.
        tell: called with the agent's end, by another thread; if the deadline comes first, more than once.
    """

    def run() -> None:
        try:
            ended = Ended(call())
        except (Exception, SystemExit) as error:  # whatever it does costs its trajectory alone
            ended = Ended(error=f"the agent failed: {error!r}")
        tell(ended)

    late = Ended(error=f"the agent has not ended in {timeout_s:g} s (env_config.agent_timeout_s)", late=True)
    deadline = threading.Timer(timeout_s, tell, [late])
    deadline.daemon = True
    deadline.start()
    threading.Thread(target=run, daemon=True, name="rapo-agent").start()
    return deadline
