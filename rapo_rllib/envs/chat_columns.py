"""Columns of a data set that hold a conversation, and the tools of a row, as TRL and verl have them.

messages: [{role: system, content: ...}, {role: user, ...}, {role: assistant, ...}, ..., {role: user, content: the question}]
tools: [weather, {type: function, function: {name: search, ...}}], or such a list as JSON
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Turns = tuple[tuple[str, str], ...]

CHAT_FIELDS = ("messages", "prompt")
TOOLS_FIELD = "tools"


def read_turns(value: Sequence[Any], where: str, key: str) -> tuple[str, Turns]:
    """The question, which is the last turn of a user, and the turns before it.

    An assistant's turn behind the question is a solution: it is not shown.

    Args:
        value: of the column.
        where: file and row number, for messages.
        key: of the column.

    Raises:
        ValueError: a turn without role or text, a role that is none, or turns that do not alternate.
    """
    turns = [_turn(item, f"{where}: {key}: turn {number}") for number, item in enumerate(value, start=1)]
    system = 1 if turns and turns[0][0] == "system" else 0
    for number, (role, _) in enumerate(turns[system:], start=system):
        wanted = "user" if (number - system) % 2 == 0 else "assistant"
        if role != wanted:
            raise ValueError(
                f"{where}: {key}: turn {number + 1} is of {role!r}, where one of {wanted!r} must stand: behind a system prompt "
                "turns of user and assistant alternate"
            )
    if len(turns) > system and turns[-1][0] == "assistant":
        turns.pop()
    if len(turns) == system or not turns[-1][1].strip():
        raise ValueError(f"{where}: {key}: holds no question, a turn of 'user' with a text")
    return turns[-1][1].strip(), tuple(turns[:-1])


def _turn(item: Any, where: str) -> tuple[str, str]:
    role, content = (item.get("role"), item.get("content")) if isinstance(item, Mapping) else (None, None)
    if isinstance(content, list) and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"{where}: must be a mapping of role and content, a text; got {str(item)[:200]}")
    if role not in ("system", "user", "assistant"):
        raise ValueError(f"{where}: role = {role!r}: must be system, user or assistant")
    return role, content


def read_tools(value: Any, where: str) -> tuple[str, ...] | None:
    """Names of the tools of a row; None: it says nothing, so all of the job's.

    Raises:
        ValueError: not a list of names or schemas.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise ValueError(f"{where}: {TOOLS_FIELD}: is no JSON: {error}") from error
    if value is None:
        return None
    names = [_name(item) for item in value] if isinstance(value, list) else [None]
    if None in names:
        raise ValueError(
            f"{where}: {TOOLS_FIELD}: must be a list of names, or of JSON schemas of functions; got {str(value)[:200]}"
        )
    return tuple(filter(None, names))


def _name(item: Any) -> str | None:
    if isinstance(item, Mapping):
        function = item.get("function", item)
        item = function.get("name") if isinstance(function, Mapping) else None
    return item if isinstance(item, str) and item else None
