"""Python functions as tools, and what a schema says of a call."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

import pytest

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.protocol.chat import default_system_prompt
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.tools import ToolLimits, ToolResult, shared_tools
from rapo_rllib.types import Question

HERE = __name__


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
    """Tells the weather.

    Args:
        city: Where.
        days: How many
            days.
        unit: Of the temperature.
    """
    if days > 9:
        raise OverflowError("too far")
    return {"city": city, "days": days, "unit": unit}


def twice(text: str) -> str:
    """Says it twice.

    Args:
        text: What.
    """
    return text * 2


def no_docstring(city: str) -> str:
    return city


def no_hint(city) -> str:  # type: ignore[no-untyped-def]
    """Tells.

    Args:
        city: Where.
    """
    return str(city)


def no_description(city: str) -> str:
    """Tells."""
    return city


class BadSchema:
    name = tag = "bad"
    description = "Bad."
    limits = ToolLimits()
    parameters: ClassVar = {"type": "object", "properties": {"a": {"type": "nothing"}}}

    def run(self, input: str) -> ToolResult:
        return ToolResult(input)


class NoDescription(BadSchema):
    description = ""


def native(*tools: Any) -> ToolEnv:
    return ToolEnv({"tools": list(tools), "protocol": {"format": "native"}})


def test_the_schema_is_the_functions() -> None:
    (tool,) = shared_tools({"function": f"{HERE}:weather"})
    assert tool.tag == "weather"
    assert tool.schema["function"] == {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where."},
                "days": {"type": "integer", "description": "How many days."},
                "unit": {"type": "string", "enum": ["C", "F"], "description": "Of the temperature."},
            },
            "required": ["city"],
        },
    }


@pytest.mark.parametrize(
    ("said", "shown", "error"),
    [
        ('{"city": "Köln", "days": 2}', '{"city": "Köln", "days": 2, "unit": "C"}', None),
        ('{"city": "Köln", "days": "2"}', "Error: wrong arguments of weather: days: '2' is not of type 'integer'", "arguments"),
        ('{"days": 2}', "Error: wrong arguments of weather: 'city' is a required property", "arguments"),
        ('{"city": "x", "unit": "K"}', "Error: wrong arguments of weather: unit: 'K' is not one of ['C', 'F']", "arguments"),
        ('{"city": "x", "days": 10}', "OverflowError: too far", "exception"),
        ("Köln", "Error: the arguments of weather are no JSON: Expecting value: line 1 column 1 (char 0)", "arguments"),
        ("[1]", "Error: the arguments of weather must be a JSON object", "arguments"),
    ],
)
def test_in_tags_its_arguments_are_json(said: str, shown: str, error: str | None) -> None:
    env = ToolEnv({"tools": [weather]})
    env.reset(options={"question": Question("q", "?", "1")})
    observation, *_, info = env.step(f"<weather>{said}</weather>")
    assert (observation, info["tool_error"], info["tool"]) == (shown, error, "weather")


def test_one_text_is_written_as_it_is() -> None:
    env = ToolEnv({"tools": [twice]})
    env.reset(options={"question": Question("q", "?", "1")})
    assert env.step("<twice>{a}</twice>")[0] == "{a}{a}"


def test_the_prompt_of_tags_shows_its_schema() -> None:
    env = ToolEnv({"tools": ["calculator", weather]})
    prompt = default_system_prompt(ProtocolSettings(), env.tool_tags, env.tool_schemas)
    shown = json.dumps(env.tool_schemas[0]["function"]["parameters"])
    assert f"<weather>JSON</weather>: Tells the weather. The JSON object has this schema: {shown}" in prompt
    assert "<calculator>input</calculator> calls the tool calculator." in prompt


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (no_docstring, "function 'no_docstring': .* has no docstring.* Fix: give every argument a type hint"),
        (no_hint, "function 'no_hint': Argument city is missing a type hint"),
        (no_description, "function 'no_description': .*no description for the argument 'city'"),
        ({"function": f"{HERE}:gone"}, "cannot import"),
        ({"function": f"{HERE}:BadSchema"}, "is no function: write package.module:function"),
        ({"function": f"{HERE}:weather", "options": {}}, "options"),
        (f"{HERE}:BadSchema", "the schema of tool 'bad' is none: at \\$.properties.a.type: 'nothing' is not valid"),
        (f"{HERE}:NoDescription", "tool 'bad' has no description, which protocol.format = 'native' shows"),
        (f"{HERE}:no_docstring", "tool 'no_docstring' has no description"),
    ],
)
def test_a_tool_that_cannot_be_shown_is_refused(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native(entry)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'weather' and 'weather' are both called by <weather>"):
        native(weather, {"function": f"{HERE}:weather", "limits": {"timeout_s": 1}})


def test_the_check_of_tags_is_refused() -> None:
    with pytest.raises(ValueError, match=r"env_config.reward.format_check = 'whole_text'.* must be 'final_step'"):
        ToolEnv({"tools": [], "protocol": {"format": "native"}, "reward": {"format_check": "whole_text"}})
