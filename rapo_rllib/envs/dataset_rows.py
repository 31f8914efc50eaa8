"""One row of a data set -> ``Question``. Known formats: GSM8K, MATH, the RAPO paper's training set, and question/answer.

One column may hold a conversation, another the tools of the row, in the form of TRL and verl:

messages: [{role: system, content: ...}, {role: user, ...}, {role: assistant, ...}, ..., {role: user, content: the question}]
tools: [weather, {type: function, function: {name: search, ...}}], or such a list as JSON

An assistant's turn before the question may hold ``tool_calls``; turns with the role ``tool`` hold the results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rapo_rllib.protocol.calls import read_object
from rapo_rllib.types import Question

Turns = tuple[tuple[Any, ...], ...]  # as ``Question.turns``

CHAT_FIELDS = ("messages", "prompt")
TOOLS_FIELD = "tools"
_QUESTION_FIELDS = ("extra_info.question", "problem", "question")
_ANSWER_FIELDS = ("reward_model.ground_truth", "answer", "answers", "golden_answers", "reward_model.ground_truth.target")
_GSM8K_MARK = "####"
_ROLES = ("system", "user", "assistant", "tool")
_MORE = {"assistant": ("tool_calls", "reasoning_content"), "tool": ("name", "tool_call_id")}  # fields that templates read


def question_from_row(
    row: Mapping[str, Any],
    where: str,
    id: str,
    question_field: str | None = None,
    answer_field: str | None = None,
    needs_answer: bool = True,
) -> Question:
    """Read the question of one row.

    Args:
        row: fields of the row.
        where: file and row number, for error messages.
        id: of the question.
        question_field: dotted name of the field with the question, as a text or as the last user's turn in a list of turns;
            None: the field names of the known formats are tried.
        answer_field: dotted name of the field with the answer: a text, a number, or a list of accepted answers; None: as above.
        needs_answer: refuse a row without an answer even if ``answer_field`` is None.

    Raises:
        ValueError: no question or no answer; names file, row and field.
    """
    text, turns = asked_text(row, where, question_field)
    names = (answer_field,) if answer_field else _ANSWER_FIELDS
    answers = next(filter(None, (accepted(field_value(row, name)) for name in names)), None)  # of the first such field
    if answers is None and (needs_answer or answer_field):
        raise ValueError(_missing("answer", where, row, names))
    first, *more = answers or [""]
    aliases = tuple(dict.fromkeys([*more, *accepted(row.get("aliases")), *accepted(row.get("answer_aliases"))]))
    ability = row.get("ability")
    source = id.rpartition("-")[0] + (f"/{ability}" if isinstance(ability, str) else "")
    tools, schemas = read_tools(row.get(TOOLS_FIELD), where)
    return Question(id, text, first, aliases, source=source, turns=turns, tools=tools, schemas=schemas, columns=row)


def asked_text(row: Mapping[str, Any], where: str, question_field: str | None) -> tuple[str, Turns]:
    """Find the question of a row, and the turns before it."""
    names = (question_field,) if question_field else (*_QUESTION_FIELDS, *CHAT_FIELDS)
    chats = names if question_field else CHAT_FIELDS
    values = {name: field_value(row, name) for name in names}
    for name, value in values.items():
        if isinstance(value, str) and value.strip():
            return value.strip(), ()
        if isinstance(value, list) and value and name in chats:
            return read_turns(value, where, name)
    empty = next((name for name in chats if values[name] == []), None)
    if empty is not None:
        return read_turns([], where, empty)
    raise ValueError(_missing("question", where, row, names))


def field_value(row: Any, dotted: str) -> Any:
    """Return the value under a dotted name such as ``a.b``, or None. A field that is itself called ``a.b`` goes first."""
    if isinstance(row, Mapping) and dotted in row:
        return row[dotted]
    head, _, rest = dotted.partition(".")
    if rest and isinstance(row, Mapping) and head in row:
        return field_value(row[head], rest)
    return None


def accepted(value: Any) -> list[str]:
    """List the accepted answers that are not empty; of a GSM8K solution take the number after ``####``."""
    values = value if isinstance(value, (list, tuple)) else [value]
    found = []
    for one in values:
        if isinstance(one, bool) or not isinstance(one, (str, int, float)) or one != one:  # NaN: an empty cell
            continue
        text = str(one).strip()
        if _GSM8K_MARK in text:
            text = text.rpartition(_GSM8K_MARK)[2].strip().replace(",", "")
        if text:
            found.append(text)
    return found


def _missing(what: str, where: str, row: Mapping[str, Any], tried: tuple[str, ...]) -> str:
    fields = ", ".join(map(str, row)) or "none"
    return f"{where}: no {what} in {', '.join(tried)}; fields of this row: {fields}. Name one in env_config.{what}_field"


def read_turns(value: Sequence[Any], where: str, key: str) -> tuple[str, Turns]:
    """Find the question, which is the last turn of a user, and the turns before it.

    Turns after the question (an assistant's, and the results of its calls) are a solution: they are left out.

    Args:
        value: the list of turns in the column.
        where: file and row number, for error messages.
        key: name of the column, for error messages.

    Raises:
        ValueError: a turn without role or text, an unknown role, or no question.
    """
    turns = [_turn(item, f"{where}: {key}: turn {number}") for number, item in enumerate(value, start=1)]
    asked = max((number for number, (role, *_) in enumerate(turns) if role == "user"), default=None)
    if asked is None or not turns[asked][1].strip():
        raise ValueError(f"{where}: {key}: holds no question, a turn of 'user' with a text")
    return turns[asked][1].strip(), tuple(turns[:asked])


def _turn(item: Any, where: str) -> tuple[Any, ...]:
    role, content = (item.get("role"), item.get("content")) if isinstance(item, Mapping) else (None, None)
    if isinstance(content, list) and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
        content = "".join(part["text"] for part in content)
    more = {name: _without_nulls(item[name]) for name in _MORE.get(str(role), ()) if item.get(name)}
    if content is None and "tool_calls" in more:
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"{where}: must be a mapping of role and content, a text; got {str(item)[:200]}")
    if not isinstance(role, str) or role not in _ROLES:
        raise ValueError(f"{where}: role = {role!r}: must be system, user, assistant or tool")
    if "tool_calls" in more:
        calls = more["tool_calls"]
        more["tool_calls"] = [_call(call, where) for call in (calls if isinstance(calls, list) else [calls])]
    return (role, content, more) if more else (role, content)


def _call(item: Any, where: str) -> dict[str, Any]:
    """Read a tool call of an earlier turn, with its arguments as an object; OpenAI's form has them as JSON text."""
    found = item.get("function", item) if isinstance(item, Mapping) else None
    function = found if isinstance(found, Mapping) else {}
    arguments = function.get("arguments") or {}
    read = read_object(arguments)[0] if isinstance(arguments, str) else arguments
    if not isinstance(function.get("name"), str) or not isinstance(read, dict):
        raise ValueError(
            f"{where}: tool_calls: must hold a name and arguments, an object or such as JSON; got {str(item)[:200]}"
        )
    return {**({"id": item["id"]} if "id" in item else {}), "type": "function", "function": {**function, "arguments": read}}


def _without_nulls(value: Any) -> Any:
    """Remove the fields that are null: Arrow gives each row the fields of all rows."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def read_tools(value: Any, where: str) -> tuple[tuple[str, ...] | None, tuple[dict[str, Any], ...]]:
    """Read the names of a row's tools (None: not given, so all of the job's tools), and the schemas that the row gives.

    Raises:
        ValueError: the value is no list of names or schemas.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise ValueError(f"{where}: {TOOLS_FIELD}: is no JSON: {error}") from error
    if value is None:
        return None, ()
    names = [_name(item) for item in value] if isinstance(value, list) else [None]
    if None in names:
        raise ValueError(
            f"{where}: {TOOLS_FIELD}: must be a list of names, or of JSON schemas of functions; got {str(value)[:200]}"
        )
    functions = [_without_nulls(item.get("function", item)) for item in value if isinstance(item, Mapping)]
    schemas = ({"type": "function", "function": one} for one in functions if isinstance(one.get("parameters"), dict))
    return tuple(filter(None, names)), tuple(schemas)


def _name(item: Any) -> str | None:
    if isinstance(item, Mapping):
        function = item.get("function", item)
        item = function.get("name") if isinstance(function, Mapping) else None
    return item if isinstance(item, str) and item else None
