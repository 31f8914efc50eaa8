"""Python functions as tools, and what a schema says of a call."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, ClassVar, Literal

import pytest

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import ToolError
from rapo_rllib.protocol.chat import default_system_prompt
from rapo_rllib.protocol.turns import Call, Turn, in_tags
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
    (tool,) = shared_tools({"name": f"{HERE}:weather"})
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


def called(env: ToolEnv, *said: str) -> list[tuple[str, str | None]]:
    """What a policy reads of calls, and their errors."""
    env.reset(options={"question": Question("q", "?", "1")})
    answers = [env.step(one) for one in said]
    return [(answer[0], answer[4]["tool_error"]) for answer in answers]


FITS_NOT = 'Error: wrong arguments of twice: {}; a text that is a JSON object itself is written as {{"text": text}}'


@pytest.mark.parametrize(
    ("said", "shown", "error"),
    [
        ("{a}", "{a}{a}", None),
        ("", "", None),
        ("[1]", "[1][1]", None),
        ('"x"', '"x""x"', None),
        ("3", "33", None),
        ('{"text": "x"}', "xx", None),
        (' {"text":\n"x"} ', "xx", None),
        ('{"text": "{\\"a\\": 1}"}', '{"a": 1}{"a": 1}', None),
        ('{"text": "x"', '{"text": "x"{"text": "x"', None),  # no JSON
        ('{"text": NaN}', '{"text": NaN}{"text": NaN}', None),
        ('{"text": 3}', FITS_NOT.format("text: 3 is not of type 'string'"), "arguments"),
        ('{"item": "x"}', None, "arguments"),
        ("{}", FITS_NOT.format("'text' is a required property"), "arguments"),
        ('{"text": "\\ud800"}', "Error: the arguments of twice hold half a character, which is no Unicode", "arguments"),
    ],
)
def test_one_text_is_written_as_it_is_or_as_json(said: str, shown: str | None, error: str | None) -> None:
    ((observation, found),) = called(ToolEnv({"tools": [twice]}), f"<twice>{said}</twice>")
    assert found == error
    assert observation == shown or (shown is None and observation.startswith("Error: wrong arguments of twice: "))


def test_nesting_without_end_is_an_error_of_the_call() -> None:
    deep = "[" * 100_000
    (one, other) = called(ToolEnv({"tools": [weather, twice]}), f"<weather>{deep}</weather>", f"<twice>{deep}</twice>")
    assert one[1] == "arguments" and other[1] is None


def test_code_is_text_even_where_it_is_json() -> None:
    said = ('{"a": 1}', '{"code": 3}', '{"code": "1", "b": 2}', "{}", '{"code": "print(1)"}')
    env = ToolEnv({"tools": [f"{HERE}:Code"], "max_tool_calls": 9})
    found = called(env, *(f"<code>{one}</code>" for one in said))
    assert [text for text, _ in found] == [*said[:4], "print(1)"]


class Code:
    """Says the code."""

    name = tag = "code"
    argument = "code"
    limits = ToolLimits()

    def run(self, input: str) -> ToolResult:
        return ToolResult(input)


class Declares(Code):
    """Says its arguments."""

    name = tag = "declares"
    parameters: ClassVar = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def test_a_tool_with_parameters_gets_json_in_both_formats() -> None:
    tags = called(ToolEnv({"tools": [f"{HERE}:Declares"]}), "<declares>x</declares>", "<declares>{}</declares>")
    assert tags[0] == ('{"a": "x"}', None) and tags[1][1] == "arguments"
    env = native(f"{HERE}:Declares", twice)
    calls = (Call("declares", {"a": "x"}), Call("twice", {"text": '{"a": 1}'}))
    ((observation, _),) = called(env, Turn.of("", calls=calls, native=True))
    assert observation == '{"a": "x"}\n{"a": 1}{"a": 1}'


def test_a_record_of_a_text_that_is_json_reads_as_it_was() -> None:
    (tool,) = shared_tools(twice)
    for text in ("x", '{"a": 1}', "[1]"):
        record = in_tags(Call("twice", {"text": text}), tool.schema)
        assert called(ToolEnv({"tools": [twice]}), record) == [(text * 2, None)]


def stock(item: str) -> str:
    """Says how many there are.

    Args:
        item: Of what.
    """
    return f"3 {item}"


class Shop:
    """A shop."""

    def __init__(self, count: int = 3) -> None:
        self.count = count

    def stock(self, item: str) -> str:
        """Says how many there are.

        Args:
            item: Of what.
        """
        return f"{self.count} {item}"

    __call__ = stock

    def __repr__(self) -> str:
        return "a shop"


def counted(count: int, item: str, *, unit: str = "") -> str:
    """Says how many there are.

    Args:
        count: How many.
        item: Of what.
        unit: In what.
    """
    return f"{count} {item}{unit}"


a_shop = Shop()


@pytest.mark.parametrize(
    ("entry", "tag"),
    [
        (stock, "stock"),
        (f"{HERE}:stock", "stock"),
        (f"{HERE}.stock", "stock"),
        ({"name": f"{HERE}:stock"}, "stock"),
        ({"name": stock}, "stock"),
        (Shop().stock, "stock"),
        (Shop(), "Shop"),
        (f"{HERE}:a_shop", "Shop"),
        (partial(counted, 3), "counted"),
        (partial(counted, count=3), "counted"),
        (partial(partial(counted, 3), unit=""), "counted"),
        ({"name": f"{HERE}:counted", "options": {"item": "gear"}}, "counted"),
    ],
)
def test_all_ways_to_name_a_function_mean_the_same(entry: Any, tag: str) -> None:
    env = ToolEnv({"tools": [entry], "max_tool_calls": 9})
    rest = '"count": 3' if isinstance(entry, dict) and "options" in entry else '"item": "gear"'
    text, wrong, *_ = called(env, f"<{tag}>{{{rest}}}</{tag}>", f'<{tag}>{{"count": "x"}}</{tag}>')
    assert (env.tool_tags, text, wrong[1]) == ((tag,), ("3 gear", None), "arguments")
    (schema,) = env.tool_schemas
    assert schema["function"]["description"] == "Says how many there are."


def now() -> str:
    """Tells the time."""
    return "noon"


@pytest.mark.parametrize("entry", [now, f"{HERE}:now"])
def test_a_function_without_arguments(entry: Any) -> None:
    env = ToolEnv({"tools": [entry]})
    assert called(env, "<now></now>", "<now>{}</now>") == [("noon", None)] * 2


def maybe(item: str | None = None, kind: Literal["a"] | None = None) -> Any:
    """Says it.

    Args:
        item: What.
        kind: Which.
    """
    return {(1, 2): 3} if item == "odd" else [item, kind]


def test_null_and_what_is_no_json() -> None:
    said = ('{"item": null, "kind": null}', "{}", "", '{"item": "x", "kind": "b"}', '{"item": "odd"}')
    found = called(ToolEnv({"tools": [maybe], "max_tool_calls": 9}), *(f"<maybe>{one}</maybe>" for one in said))
    assert found[:3] == [("[null, null]", None)] * 3
    assert [error for _, error in found[3:]] == ["arguments", "exception"]


def broken(item: str) -> str:
    """Breaks.

    Args:
        item: What.
    """
    raise ToolError("gone")


def test_a_broken_tool_is_no_observation() -> None:
    with pytest.raises(ToolError, match="gone"):
        called(ToolEnv({"tools": [broken]}), "<broken>x</broken>")


def generates(item: str):  # type: ignore[no-untyped-def]
    yield item


async def waits(item: str) -> str:
    return item


def takes_all(*items: str) -> str:
    return items[0]


def takes_any(item: str, **more: str) -> str:
    return item


def by_place(item: str, /) -> str:
    return item


class Waits:
    async def __call__(self, item: str) -> str:
        return item


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda item: item, "function '<lambda>' has no name that a policy can call it by"),
        (generates, "function 'generates' is a generator"),
        (waits, "function 'waits' is async"),
        (partial(waits), "function 'waits' is async"),
        (Waits(), "function 'Waits' is async"),
        (takes_all, r"function 'takes_all' takes \*items: name every argument"),
        (takes_any, r"function 'takes_any' takes \*\*more: name every argument"),
        (by_place, "function 'by_place' takes item by its place alone"),
        (no_docstring, "function 'no_docstring': .* has no docstring.* Fix: give every argument a type hint"),
        (no_hint, "function 'no_hint': Argument city is missing a type hint"),
        (no_description, "function 'no_description': .*no description for the argument 'city'"),
        (partial(Code), "function 'Code' is a class"),
    ],
)
def test_a_function_that_no_policy_can_call_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"env_config.tools: .*{message}"):
        ToolEnv({"tools": [function]})


def test_objects_that_are_written_alike_are_two_tools() -> None:
    one, other = (ToolEnv({"tools": [Shop(count)]}) for count in (3, 4))
    assert [called(env, "<Shop>gear</Shop>")[0][0] for env in (one, other)] == ["3 gear", "4 gear"]


def test_the_prompt_of_tags_shows_its_schema() -> None:
    env = ToolEnv({"tools": ["calculator", weather]})
    prompt = default_system_prompt(ProtocolSettings(), env.tool_tags, env.tool_schemas)
    shown = json.dumps(env.tool_schemas[0]["function"]["parameters"])
    assert f"<weather>JSON</weather>: Tells the weather. The JSON object has this schema: {shown}" in prompt
    assert "<calculator>input</calculator> calls the tool calculator." in prompt


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (f"{HERE}:gone", "cannot import"),
        (f"{HERE}:BadSchema", "the schema of tool 'bad' is none: at \\$.properties.a.type: 'nothing' is not valid"),
        (f"{HERE}:NoDescription", "tool 'bad' has no description, which protocol.format = 'native' shows"),
    ],
)
def test_a_tool_that_cannot_be_shown_is_refused(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native(entry)


def test_the_check_of_tags_is_refused() -> None:
    with pytest.raises(ValueError, match=r"env_config.reward.format_check = 'whole_text'.* must be 'final_step'"):
        ToolEnv({"tools": [], "protocol": {"format": "native"}, "reward": {"format_check": "whole_text"}})
