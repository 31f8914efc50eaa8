"""Rows with a conversation: what is asked, what stands before it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rapo_rllib.envs.questions import Questions
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question

SYSTEM, USER, MORE = ({"role": role, "content": text} for role, text in (("system", "S"), ("user", "1?"), ("assistant", "one")))
LAST = {"role": "user", "content": "2? "}


def called(arguments: Any) -> dict[str, Any]:
    """A turn that calls a tool, with a field that is null, as Arrow has those of other rows."""
    function = {"name": "calculator", "arguments": arguments}
    return {"role": "assistant", "content": None, "name": None, "tool_calls": [{"id": "1", "function": function, "x": None}]}


RESULT = {"role": "tool", "content": "8", "name": "calculator", "tool_call_id": "1", "tool_calls": None}


def loaded(tmp_path: Path, row: dict[str, Any], **options: Any) -> Question:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"question": "first?", "answer": "1"}) + "\n" + json.dumps({"answer": "2", **row}) + "\n")
    (_, found) = Questions.questions({"dataset": str(file), "tools": ["calculator"], **options}, "train")
    return found


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"prompt": [LAST]}, ()),
        ({"prompt": [SYSTEM, LAST]}, (("system", "S"),)),
        ({"messages": [SYSTEM, USER, MORE, LAST]}, (("system", "S"), ("user", "1?"), ("assistant", "one"))),
        ({"messages": [LAST, MORE]}, ()),  # the solution is not shown
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "2"}, {"type": "text", "text": "?"}]}]}, ()),
        ({"prompt": "2?"}, ()),
    ],
)
def test_the_last_turn_is_the_question(tmp_path: Path, row: dict[str, Any], turns: tuple[Any, ...]) -> None:
    question = loaded(tmp_path, row)
    assert (question.text, question.turns, question.tools, question.answer) == ("2?", turns, None, "2")


@pytest.mark.parametrize("arguments", ['{"expression": "3 + 5"}', {"expression": "3 + 5", "city": None}])
def test_earlier_calls_and_results_stay(tmp_path: Path, arguments: Any) -> None:
    """In OpenAI's form and in TRL's; those behind the question are a solution."""
    row = {"messages": [USER, called(arguments), RESULT, MORE, LAST, called(arguments), RESULT, MORE]}
    question = loaded(tmp_path, row, protocol=ProtocolSettings(format="native"))
    call = {"id": "1", "type": "function", "function": {"name": "calculator", "arguments": {"expression": "3 + 5"}}}
    assert question.text == "2?" and question.messages == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "8", "name": "calculator", "tool_call_id": "1"},
        MORE,
    ]


def test_a_row_has_schemas_of_its_own(tmp_path: Path) -> None:
    parameters = {"type": "object", "properties": {"expression": {"type": "string"}}}
    flat = {"name": "calculator", "description": "Adds.", "parameters": {**parameters, "x": None}}
    wanted = {"type": "function", "function": {"name": "calculator", "description": "Adds.", "parameters": parameters}}
    for tools in ([flat], [{"type": "function", "function": flat}], json.dumps([flat])):
        question = loaded(tmp_path, {"prompt": [LAST], "tools": tools})
        assert (question.tools, question.schemas) == (("calculator",), (wanted,))


def test_a_question_goes_before_a_conversation_unless_that_is_named(tmp_path: Path) -> None:
    row = {"question": "3?", "chat": {"turns": [SYSTEM, LAST]}, "prompt": [USER]}
    assert loaded(tmp_path, row).text == "3?"
    file = tmp_path / "named.jsonl"
    file.write_text(json.dumps({"answer": "2", **row}))
    (question,) = Questions.questions({"dataset": str(file), "question_field": "chat.turns"}, "train")
    assert (question.text, question.turns) == ("2?", (("system", "S"),))


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        (["calculator"], ("calculator",)),
        ([], ()),
        (None, None),
        ([{"type": "function", "function": {"name": "calculator", "parameters": {}}}], ("calculator",)),
        ('[{"name": "calculator"}]', ("calculator",)),
    ],
)
def test_a_row_names_its_tools(tmp_path: Path, tools: Any, names: tuple[str, ...] | None) -> None:
    assert loaded(tmp_path, {"prompt": [LAST], "tools": tools}).tools == names


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"messages": [{"role": "critic", "content": "8"}]},
            "messages: turn 1: role = 'critic': must be system, user, assistant or tool",
        ),
        ({"messages": [USER, called("{3"), LAST]}, "messages: turn 2: tool_calls: must hold a name and arguments"),
        ({"messages": [USER, {**MORE, "tool_calls": 7}, LAST]}, "messages: turn 2: tool_calls: must hold a name and arguments"),
        ({"messages": [USER, {**MORE, "tool_calls": [{"function": "x"}]}, LAST]}, "turn 2: tool_calls: must hold a name"),
        ({"messages": [USER, {"role": "assistant", "content": None}, LAST]}, "messages: turn 2: must be a mapping of role"),
        (
            {"messages": [USER, called('{"expression": "3"}'), LAST]},
            "row 2: earlier turns hold tool calls or results, which the chat template writes: set protocol.format to 'native'",
        ),
        ({"messages": [SYSTEM]}, "rows.jsonl, row 2: messages: holds no question"),
        ({"messages": []}, "row 2: messages: holds no question"),
        ({"prompt": ["2?"]}, "row 2: prompt: turn 1: must be a mapping of role and content, a text; got 2?"),
        ({"prompt": [{"role": "user", "content": None}]}, "row 2: prompt: turn 1: must be a mapping"),
        ({"prompt": [LAST], "tools": ["search"]}, "row 2: tools: 'search' is none of the job's tools (calculator)"),
        ({"prompt": [LAST], "tools": [7]}, "row 2: tools: must be a list of names"),
        ({"prompt": [LAST], "tools": "calculator"}, "row 2: tools: is no JSON"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        loaded(tmp_path, row)
    assert message in str(error.value)
