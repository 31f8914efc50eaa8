"""One turn of the policy as an environment receives it: its text, and the tool calls that were read from it.

engine -> tokens of one turn -> RolloutProtocol.read -> Turn -> environment -> Observation -> RolloutProtocol.observation
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rapo_rllib.protocol.calls import read_object

Schema = dict[str, Any]  # {"type": "function", "function": {"name", "description", "parameters"}}, as chat templates take it


@dataclass(frozen=True)
class Call:
    """One tool call that the policy wrote.

    Example: ``Call("calculator", {"expression": "3 + 5"}, "000000001")``.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    problem: str = ""  # why the call cannot be run, for the policy to read; empty: the call was read


class Turn(str):
    """Text that the policy wrote in one step; an environment without calls can use it as a plain ``str``."""

    calls: tuple[Call, ...] = ()
    content: str = ""  # without calls and thoughts
    thoughts: str = ""  # at its beginning, as they were written
    spill: str = ""  # characters that its tokens carry beyond the text
    record: str | None = None  # the turn in the text protocol, if it is written in another format
    answer: str | None = None  # of a turn that ends the episode with an answer
    native: bool = False  # its calls were read; else they stand in tags in the text

    @classmethod
    def of(cls, text: str, **parts: Any) -> Turn:
        """Make a turn of its text and other attributes."""
        turn = cls(text)
        vars(turn).update(parts)
        return turn


class Observation(str):
    """The answers of the tools of one turn: as one text, and each by itself."""

    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[str]) -> Observation:
        r"""Join the parts by line breaks.

        >>> Observation.of(["8", "9"])
        '8\n9'
        """
        observation = cls("\n".join(parts))
        observation.parts = tuple(parts)
        return observation


class Piece(NamedTuple):
    """Tokens that are appended, and their text."""

    token_ids: Sequence[int]
    text: str


def text_argument(schema: Schema) -> str | None:
    """Return the name of the argument of a tool that takes a single text; None: the tool's arguments are JSON."""
    properties = schema["function"]["parameters"].get("properties", {})
    if len(properties) != 1:
        return None
    (name, declared), *_ = properties.items()
    if not isinstance(declared, Mapping):  # `true` or `false`: a schema, too
        return None
    return name if declared.get("type") in ("string", ["string", "null"]) and "enum" not in declared else None


def in_tags(call: Call, schema: Schema | None) -> str:
    """Write a call in the text protocol: a single text argument as it is, other arguments as JSON.

    Step traces and histories are kept in this form, whatever format the policy writes, so that the formats share a buffer.
    """
    name = None if schema is None else text_argument(schema)
    as_json = json.dumps(dict(call.arguments), ensure_ascii=False)
    text = call.arguments.get(name) if name is not None else None
    plain = isinstance(text, str) and read_object(text)[0] is None
    return f"<{call.name}>{text if plain else as_json}</{call.name}>"
