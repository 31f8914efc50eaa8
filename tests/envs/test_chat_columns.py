"""Rows with a conversation: what is asked, what stands before it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rapo_rllib.envs.questions import Questions
from rapo_rllib.types import Question

SYSTEM, USER, MORE = ({"role": role, "content": text} for role, text in (("system", "S"), ("user", "1?"), ("assistant", "one")))
LAST = {"role": "user", "content": "2? "}


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
        ({"prompt": [USER, LAST]}, "rows.jsonl, row 2: prompt: turn 2 is of 'user', where one of 'assistant' must stand"),
        ({"messages": [SYSTEM, MORE, LAST]}, "row 2: messages: turn 2 is of 'assistant', where one of 'user' must stand"),
        ({"messages": [USER, SYSTEM, LAST]}, "row 2: messages: turn 2 is of 'system', where one of 'assistant' must stand"),
        (
            {"messages": [{"role": "tool", "content": "8"}]},
            "messages: turn 1: role = 'tool': must be system, user or assistant",
        ),
        ({"messages": [SYSTEM]}, "row 2: messages: holds no question"),
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
