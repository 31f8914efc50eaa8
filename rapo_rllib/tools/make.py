"""``env_config.tools`` -> tools: by short name, or by the import path of a class, an object or a function."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

from rapo_rllib.errors import ToolError
from rapo_rllib.tools.base import Tool, ToolLimits, ToolResult
from rapo_rllib.tools.schema import NAME
from rapo_rllib.validation import nearest_key, refuse_unknown_keys

# Import paths, so that a tool's packages are loaded only if it is used.
TOOLS = {
    "calculator": "rapo_rllib.tools.calculator:Calculator",
    "python": "rapo_rllib.tools.python:PythonTool",
    "search": "rapo_rllib.corpus.search_tool:CorpusSearch",
    "web_search": "rapo_rllib.web_search.tool:WebSearch",
}
_RUNS_WITH = "give every argument a type hint, and the docstring a description and an `Args:` section in Google's style"
_UNFIT = {
    inspect.Parameter.VAR_POSITIONAL: "takes *{}: name every argument",
    inspect.Parameter.VAR_KEYWORD: "takes **{}: name every argument",
    inspect.Parameter.POSITIONAL_ONLY: "takes {} by its place alone, and calls name their arguments: leave the / out",
}


def make_tool(named: Any, **options: Any) -> Tool:
    """Make one tool.

    Args:
        named: a short name (``python``), an import path (``package.module:Class`` or ``package.module:function``), or the
            object itself: a class, a function with type hints and a docstring, or a tool.
        **options: arguments of the class; or of the function, for those arguments that the policy does not give.

    Raises:
        ValueError: unknown name, import path that leads nowhere, unknown option, or an object that no policy can call.
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
    """Refuse options that ``target`` does not take; its ``first`` arguments are not options."""
    parameters = dict(list(inspect.signature(target).parameters.items())[first:])
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        refuse_unknown_keys(options, parameters, f"env_config.tools: {name}: options.")


class JsonFunction:
    """Tool made of a function: the policy writes arguments as JSON, or a single text as it is. The schema is the function's.

    Args:
        function: the policy sees its result, a text as it is, anything else as JSON; or its exception, except a ``ToolError``.
        name: of the tool.

    Raises:
        ValueError: a type hint, the docstring, or an argument's description is missing.
    """

    limits = ToolLimits()

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        from transformers.utils import get_json_schema
        from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

        self.name = self.tag = name
        try:
            declared = get_json_schema(_outline(function, name))["function"]
        except (DocstringParsingException, TypeHintParsingException) as error:
            raise ValueError(f"env_config.tools: function {name!r}: {error}. Fix: {_RUNS_WITH}") from error
        except Exception as error:  # a hint that no schema can be made of
            raise ValueError(f"env_config.tools: function {name!r}: no schema can be made of it: {error}") from error
        self.description, self.parameters = declared["description"], _with_null(declared["parameters"])
        self._function = function

    def run(self, input: str) -> ToolResult:
        """Call the function with the arguments in ``input``, a JSON object that fits its schema."""
        try:
            found = self._function(**json.loads(input))
            if isinstance(found, str | ToolResult):
                return found if isinstance(found, ToolResult) else ToolResult(found)
            return ToolResult(json.dumps(found, ensure_ascii=False, default=str))
        except ToolError:
            raise
        except Exception as error:
            return ToolResult(f"{type(error).__name__}: {error}", "exception")


def function_tool(function: Callable[..., Any]) -> JsonFunction:
    """Make a tool of a function.

    Raises:
        ValueError: no policy can call this kind of function, or no schema can be made of it.
    """
    name = _name_of(function)
    if problem := _problem_of(function, name):
        raise ValueError(f"env_config.tools: function {name!r} {problem}")
    return JsonFunction(function, name)


def _name_of(function: Any) -> str:
    """Return the name of a function. A partial has the name of the function in it, a callable object that of its class."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _problem_of(function: Any, name: str) -> str:
    """Find the reason why a policy cannot call a function; empty: it can."""
    inner = function.func if isinstance(function, partial) else function
    called = inner if inspect.isroutine(inner) else getattr(inner, "__call__", inner)  # noqa: B004
    if isinstance(inner, type):
        return "is a class, and no function: name a tool's class by its import path alone"
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        return "is async: write a plain function"
    if inspect.isgeneratorfunction(called):
        return "is a generator: return the whole output"
    if not NAME.fullmatch(name):
        return "has no name that a policy can call it by: write it with def, in letters, digits, _ and -"
    parameters = inspect.signature(function).parameters.values()
    return next((_UNFIT[p.kind].format(p.name) for p in parameters if p.kind in _UNFIT), "")


def _open_parameters(function: Any) -> list[inspect.Parameter]:
    """List the parameters that the policy gives, without those that a partial sets."""
    given = function.keywords if isinstance(function, partial) else {}
    return [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name not in given]


def _outline(function: Any, name: str) -> Callable[..., Any]:
    """Build a stand-in with the name, docstring, type hints and arguments of ``function`` as the policy calls it."""
    inner: Any = function.func if isinstance(function, partial) else function
    routine: Any = inner if inspect.isroutine(inner) else getattr(inner, "__call__", None)  # noqa: B004

    def outline() -> None: ...

    parameters, hints = _open_parameters(function), get_type_hints(routine)
    documented = inspect.getdoc(routine) or ("" if routine is inner else inspect.getdoc(inner))
    outline.__name__, outline.__doc__ = name, documented
    outline.__annotations__ = {parameter.name: hints[parameter.name] for parameter in parameters if parameter.name in hints}
    outline.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return outline


def _with_null(schema: Any) -> Any:
    """Replace ``nullable``, which is no keyword of JSON schema, by keywords that are."""
    if isinstance(schema, list):
        return [_with_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _with_null(part) for key, part in schema.items()}
    if made.get("nullable") is True:
        del made["nullable"]
        kinds = made.get("type")
        made |= {"type": [*(kinds if isinstance(kinds, list) else [kinds]), "null"]} if kinds else {}
        made |= {key: [*made[key], extra] for key, extra in (("anyOf", {"type": "null"}), ("enum", None)) if key in made}
    return made
