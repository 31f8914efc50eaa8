"""``env_config.tools`` -> tools: by short name, or by the import path of a class, an object or a function."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from rapo_rllib.tools.base import Tool
from rapo_rllib.tools.function import function_tool
from rapo_rllib.validation import nearest_key, refuse_unknown_keys

# Import paths, so that a tool's packages are loaded only if it is used.
TOOLS = {
    "calculator": "rapo_rllib.tools.calculator:Calculator",
    "python": "rapo_rllib.tools.python:PythonTool",
    "search": "rapo_rllib.corpus.search_tool:CorpusSearch",
    "web_search": "rapo_rllib.web_search.tool:WebSearch",
}


def make_tool(named: Any, **options: Any) -> Tool:
    """Make one tool.

    Args:
        named: a short name (``python``), an import path (``package.module:Class`` or ``package.module:function``), or what is
            found there: a class, a function with type hints and a docstring, a tool.
        **options: arguments of the class, or those of the function that the policy does not give.

    Raises:
        ValueError: unknown name, import path that leads nowhere, unknown option, or what no policy can call.
    """
    tool = target = _target(named) if isinstance(named, str) else named
    if callable(target) and not isinstance(target, type | Tool):
        if options:
            _check_options(target, named, options, first=1)
            return function_tool(partial(target, **options))
        return function_tool(target)
    if isinstance(target, type):
        _check_options(target, named, options)
        try:
            inspect.signature(target).bind(**options)
        except TypeError as error:
            raise ValueError(f"env_config.tools: tool {named!r}: {error}: give it in options") from error
        tool = target(**options)
    if not isinstance(tool, Tool):
        missing = [part for part in ("name", "tag", "limits", "run") if not hasattr(tool, part)]
        raise ValueError(f"env_config.tools: {named!r} is no tool: it lacks {', '.join(missing)}")
    return tool


def _target(name: str) -> Any:
    path = TOOLS.get(name, name)
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not module:
        raise ValueError(f"env_config.tools: unknown tool {name!r}: {nearest_key(name, TOOLS)} (or package.module:Class)")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"env_config.tools: cannot import {name!r}: {error}") from error


def _check_options(target: Any, name: Any, options: Mapping[str, Any], first: int = 0) -> None:
    """Refuse options that ``target``, whose first arguments are not options, does not take."""
    parameters = dict(list(inspect.signature(target).parameters.items())[first:])
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        refuse_unknown_keys(options, parameters, f"env_config.tools: {name}: options.")
