"""Calls of a turn that is plain JSON: all of them, or none."""

from __future__ import annotations

import json

import pytest

from rapo_rllib.protocol.calls import ReadCalls, has_unread, looks_broken, read_json

ADD = '{"name": "add", "arguments": {"a": 1}}'


@pytest.mark.parametrize("text", [ADD, f"[{ADD}]", f"```json\n{ADD}\n```", ADD.replace("arguments", "parameters")])
def test_a_call_is_read(text: str) -> None:
    assert read_json(text) == ReadCalls("", (("add", '{"a": 1}'),))


def test_a_list_of_calls_is_read_in_order() -> None:
    other = ADD.replace("add", "times")
    assert read_json(f"[{ADD}, {other}]").calls == (("add", '{"a": 1}'), ("times", '{"a": 1}'))


@pytest.mark.parametrize(
    "wrong", ['{"nam": "add"}', '{"name": "add"}', '{"name": 3, "arguments": {}}', '"add"', "null", f"[{ADD}]", "7"]
)
@pytest.mark.parametrize("form", ["[{wrong}]", "[{add}, {wrong}]", "[{wrong}, {add}]", "[{add}, {wrong}, {add}]"])
def test_a_list_in_which_one_is_no_call_has_none(wrong: str, form: str) -> None:
    """Half of what was meant would be run, and the policy told nothing of the rest."""
    text = form.format(wrong=wrong, add=ADD)
    assert read_json(text) == ReadCalls(text, (), broken=text.startswith("[{"))


@pytest.mark.parametrize(("text", "broken"), [("It is 8.", False), ("{", True), ("[]", False), ("8", False), ("", False)])
def test_what_is_no_call_is_text(text: str, broken: bool) -> None:
    assert read_json(text) == ReadCalls(text, (), broken)


@pytest.mark.parametrize(
    ("text", "parser", "broken"),
    [
        ("I call functions with <function_calls>.", "hermes", False),
        ("<function_calls>add</function_calls>", "hermes", True),  # another family's
        ("So: <tool_call>add", "hermes", True),
        ("So: <tool_call>add", "lfm2", False),
        ("So: <tool_call>add", "kimi_k2", True),  # whose marks are not known here
    ],
)
def test_another_familys_mark_in_an_answer_is_text(text: str, parser: str, broken: bool) -> None:
    assert looks_broken(text, parser) == broken


def test_a_mark_in_prose_is_no_call() -> None:
    call = "<tool_call>add</tool_call>"
    assert not has_unread(f"I write <tool_call>:\n{call}", [("add", "{}")])
    assert not has_unread(call, [("add", '{"a": "\\u003ctool_call>"}')]) and has_unread(call * 2, [("add", "{}")])


def test_an_escaped_mark_in_an_argument_hides_no_call() -> None:
    call, read = '<tool_call>{"name": "add", "arguments": {"a": "\\u003ctool_call>"}}', [("add", '{"a": "<tool_call>"}')]
    assert not has_unread(call, read) and has_unread(f"{call}<tool_call>add", read)
    literal = [("add", json.dumps({"a": "\\u003ctool_call>"}))]  # of a form in which arguments are no JSON
    assert not has_unread("<tool_call><parameter=a>\\u003ctool_call>", literal)
