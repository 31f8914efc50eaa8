"""What a tool is, and how ``env_config.tools`` becomes tools. Flow: ParsedStep.tool_input -> Tool.run -> ToolResult."""

from __future__ import annotations

import difflib
import importlib
import inspect
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

# Import paths, so that a tool's packages are loaded only by those who use it.
TOOLS = {"python": "rapo_rllib.tools.python:PythonTool"}


@dataclass(frozen=True)
class ToolResult:
    """The outcome of one call.

    ``error`` says in one word why the call failed ("timeout", "exception", ...), for counting; the model reads ``text``.
    """

    text: str
    error: str | None = None
    seconds: float = 0.0  # wall clock of the call


@runtime_checkable
class Tool(Protocol):
    """Something a policy may call between ``<tag>`` and ``</tag>``. Calls come from several threads at once.

    A bad call (failing code, a query without hits, a timeout) is a ``ToolResult`` with ``error``. ``run`` raises ``ToolError``
    only if the tool itself is broken.
    """

    name: str
    tag: str

    def run(self, input: str) -> ToolResult:
        """Run the tool on the text between its tags."""


def make_tool(name_or_import_path: str, **options: Any) -> Tool:
    """One tool from its short name (``python``) or an import path (``package.module:Class``).

    Raises:
        ValueError: unknown name, import path that leads nowhere, unknown option, or no tool at the end of the path.
    """
    cls = _tool_class(name_or_import_path)
    _check_options(cls, name_or_import_path, options)
    tool = cls(**options)
    if not isinstance(tool, Tool):
        raise ValueError(f"env_config.tools: {name_or_import_path!r} is no tool: it needs name, tag and run(input)")
    return tool


def _tool_class(name: str) -> Any:
    path = TOOLS.get(name, name)
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not module:
        near = difflib.get_close_matches(name, TOOLS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(TOOLS)}, or package.module:Class"
        raise ValueError(f"env_config.tools: unknown tool {name!r}: {hint}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"env_config.tools: cannot import {name!r}: {error}") from error


def _check_options(cls: Any, name: str, options: dict[str, Any]) -> None:
    parameters = inspect.signature(cls).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in options:
        if key not in parameters:
            near = difflib.get_close_matches(key, parameters, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"valid options: {', '.join(parameters)}"
            raise ValueError(f"env_config.tools: tool {name!r} has no option {key!r}: {hint}")
