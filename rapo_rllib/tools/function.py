"""A Python function with type hints and a docstring as a tool.

``{function: my_tools:weather}`` -> ``JsonFunction``: JSON of arguments -> the function -> text
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rapo_rllib.protocol.turns import text_argument
from rapo_rllib.tools.base import ToolLimits, ToolResult
from rapo_rllib.tools.schema import problem_of, tool_schema

_RUNS_WITH = "give every argument a type hint, and the docstring a description and an `Args:` section in Google's style"


class JsonFunction:
    """A function whose arguments the policy writes as JSON; its name, description and schema are the function's.

    Args:
        function: what it returns is shown: a text as it is, anything else as JSON. What it raises is an observation.

    Raises:
        ValueError: a type hint, the docstring, or an argument's description is missing.
    """

    limits = ToolLimits()

    def __init__(self, function: Callable[..., Any]) -> None:
        from transformers.utils import get_json_schema
        from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

        self.name = self.tag = getattr(function, "__name__", type(function).__name__)
        try:
            declared = get_json_schema(function)["function"]
        except (DocstringParsingException, TypeHintParsingException) as error:
            raise ValueError(f"env_config.tools: function {self.name!r}: {error}. Fix: {_RUNS_WITH}") from error
        except Exception as error:  # a hint that no schema can be made of
            raise ValueError(f"env_config.tools: function {self.name!r}: no schema can be made of it: {error}") from error
        self.description, self.parameters = declared["description"], declared["parameters"]
        self._function = function
        self._schema = tool_schema(self)

    def run(self, input: str) -> ToolResult:
        """Call the function with the arguments in ``input``, a JSON object; with a single text, the text itself will do."""
        name = text_argument(self._schema)
        try:
            arguments = {name: input} if name is not None else json.loads(input)
        except ValueError as error:
            return ToolResult(f"Error: the arguments of {self.name} are no JSON: {error}", "arguments")
        if not isinstance(arguments, dict):
            return ToolResult(f"Error: the arguments of {self.name} must be a JSON object", "arguments")
        if problem := problem_of(self._schema, arguments):
            return ToolResult(f"Error: {problem}", "arguments")
        try:
            found = self._function(**arguments)
        except Exception as error:
            return ToolResult(f"{type(error).__name__}: {error}", "exception")
        if isinstance(found, ToolResult):
            return found
        return ToolResult(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str))
