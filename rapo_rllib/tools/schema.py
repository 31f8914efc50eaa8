"""The JSON schema of a tool's arguments: shown in a prompt, and used to check the policy's calls.

Tool -> ``tool_schema`` -> prompt
text between tags -> ``arguments_of`` --+
Call of the model's own format ---------+--> ``problem_of`` -> what is wrong, or "" -> ``input_of`` -> Tool.run
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from rapo_rllib.protocol.calls import read_object
from rapo_rllib.protocol.turns import Schema, text_argument

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tool_schema(tool: Any) -> Schema:
    """Build the schema of a tool; the name in it is the tag, by which the policy calls the tool in every format.

    The schema of the arguments is ``tool.parameters``. A tool without it takes one text, named by ``tool.argument``, else
    ``input``. The description is ``tool.description``, else the first paragraph of the docstring of the tool's class.

    Raises:
        ValueError: no description, ``parameters`` that are no schema of an object, or a tag that no model can call.
    """
    description = tool.description if hasattr(tool, "description") else _first_paragraph(tool)
    if not description:
        raise ValueError(
            f"env_config.tools: tool {tool.tag!r} has no description, which protocol.format = 'native' shows to the policy: "
            "give it an attribute `description`, or a docstring"
        )
    parameters = getattr(tool, "parameters", None)
    if parameters is None:
        name = getattr(tool, "argument", "input")
        declared = {"type": "string", "description": f"What goes to {tool.tag}."}
        parameters = {"type": "object", "properties": {name: declared}, "required": [name]}
    check_parameters(parameters, tool.tag)
    if not NAME.fullmatch(tool.tag):
        raise ValueError(f"env_config.tools: tool {tool.tag!r}: a name that a model calls has letters, digits, _ and - only")
    return {"type": "function", "function": {"name": tool.tag, "description": description, "parameters": dict(parameters)}}


def check_parameters(parameters: Any, name: str) -> None:
    """Raise ``ValueError`` unless ``parameters`` is a JSON schema of an object, and refers to nothing outside itself."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    where = f"env_config.tools: the schema of tool {name!r}"
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise ValueError(f"{where} is none: at {error.json_path}: {error.message}") from error
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise ValueError(f"{where} = {parameters!r}: must have type: object")
    if outside := re.search(r'"\$ref": "([^#"][^"]*)"', json.dumps(dict(parameters))):
        raise ValueError(f"{where} refers to {outside[1]!r}: nothing is fetched, so write it into the schema")


def problem_of(schema: Schema, arguments: Mapping[str, Any]) -> str:
    """Check a call's arguments against the tool's schema, and say what is wrong; empty: nothing.

    Arguments that the schema does not name are wrong, unless it says ``additionalProperties``.

    >>> parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    >>> problem_of({"type": "function", "function": {"name": "add", "parameters": parameters}}, {"a": "1"})
    "wrong arguments of add: a: '1' is not of type 'integer'"
    """
    from jsonschema import Draft202012Validator

    function = schema["function"]
    validator = Draft202012Validator({"additionalProperties": False, **function["parameters"]})
    found = []
    for error in sorted(validator.iter_errors(dict(arguments)), key=lambda error: list(map(str, error.path))):
        place = ".".join(map(str, error.path))
        found.append(f"{place}: {error.message}" if place else error.message)
    return f"wrong arguments of {function['name']}: {'; '.join(found)}" if found else ""


def arguments_of(schema: Schema, said: str) -> tuple[dict[str, Any], str]:
    """Read the arguments that a policy wrote between tags, and say what is wrong with them; empty: nothing.

    A JSON object holds the arguments. Any other text is the argument of a tool that takes one text, and wrong for other tools.

    >>> parameters = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
    >>> stock = {"type": "function", "function": {"name": "stock", "parameters": parameters}}
    >>> arguments_of(stock, "gear"), arguments_of(stock, '{"item": "gear"}')
    (({'item': 'gear'}, ''), ({'item': 'gear'}, ''))
    """
    name, required = text_argument(schema), schema["function"]["parameters"].get("required", ())
    if not said.strip() and not required:
        return {}, ""
    arguments, problem = read_object(said)
    if name is not None and arguments is None:
        arguments, problem = read_object(json.dumps({name: said}))
    if problem or arguments is None:
        return {}, f"the arguments of {schema['function']['name']} {problem}"
    problem = problem_of(schema, arguments)
    if problem and name is not None:
        problem += f"; a text that is a JSON object itself is written as {{{json.dumps(name)}: text}}"
    return arguments, problem


def call_form(tag: str, schema: Schema | None) -> str:
    """Write an example of a call in tags, as ``rllib tools list`` shows it."""
    if schema is None:
        return f"<{tag}>text</{tag}>"
    properties = schema["function"]["parameters"].get("properties", {})
    as_json = f"<{tag}>{{{', '.join(f'{json.dumps(name, ensure_ascii=False)}: ...' for name in properties)}}}</{tag}>"
    name = text_argument(schema)
    return as_json if name is None else f"<{tag}>{name}</{tag}>, or {as_json}"


def input_of(schema: Schema, arguments: Mapping[str, Any]) -> str:
    """Return the input of the tool's ``run``: its one text, or all arguments as JSON."""
    name = text_argument(schema)
    return str(arguments[name]) if name is not None else json.dumps(dict(arguments), ensure_ascii=False)


def _first_paragraph(tool: Any) -> str:
    text = type(tool).__doc__ or ""  # its own, not inherited; a dataclass may have one made of its fields
    if text.startswith(f"{type(tool).__name__}("):
        return ""
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].replace("``", "`").split())
