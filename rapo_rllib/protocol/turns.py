"""One turn of the policy as an environment receives it: its text, and the tool calls that were read from it.

engine -> tokens of one turn -> RolloutProtocol.read -> Turn -> environment -> Observation -> RolloutProtocol.observation
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rapo_rllib.protocol.calls import read_object
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question

Schema = dict[str, Any]  # {"type": "function", "function": {"name", "description", "parameters"}}, as chat templates take it


@dataclass(frozen=True)
class Call:
    """One tool call that the policy wrote.

    Example: ``Call("calculator", {"expression": "3 + 5"}, "000000001")``.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    problem: str = ""  # why it cannot be run, for the policy to read; empty: it was read


class Turn(str):
    """The text that the policy wrote in one step; an environment that knows no calls takes it as the ``str`` that it is."""

    calls: tuple[Call, ...] = ()
    content: str = ""  # without calls and thoughts
    thoughts: str = ""  # that it begins with, as they were written
    spill: str = ""  # characters that its tokens carry beyond the text
    record: str | None = None  # the same in the text protocol, where it is written in another form
    answer: str | None = None  # of a turn that ends the episode with one
    native: bool = False  # its calls were read; else they stand in tags in the text

    @classmethod
    def of(cls, text: str, **parts: Any) -> Turn:
        """A turn with some of its parts."""
        turn = cls(text)
        vars(turn).update(parts)
        return turn


class Observation(str):
    """The answers of the tools of one turn: as one text, and each by itself."""

    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[str]) -> Observation:
        r"""The parts, joined by line breaks.

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


class RolloutProtocol(Protocol):
    """All that a rollout knows of a format: it makes a prompt of a question, and text to be appended."""

    tokenizer: Any
    settings: ProtocolSettings
    end_ids: list[int]  # tokens that end the policy's turn, the usual one first
    opening: Piece  # between what is appended and the policy's next turn
    shows_in_turn: bool  # a retrieved step stands in the policy's turn, behind the opening; else it is a turn before it

    @property
    def tools(self) -> Sequence[str]:
        """Names of the tools that it knows of."""

    def prompt_ids(self, question: str, given: Question | None = None) -> list[int]:
        """Tokens of the whole prompt, up to where the policy starts to write; ``given`` may bring turns before it. ``[P]``."""

    def stops(self, closing: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
        """Strings that end a step, and the one behind which one more token is asked for; ``closing``: of tools and answer."""

    def read(self, token_ids: Sequence[int], text: str, spill: str, finish: str) -> Turn:
        """Read one generated step; the arguments are those of a ``Completion``."""

    def written(self, step: str) -> Piece:
        """Return another agent's step, from the text protocol and without its result, as the policy would write it."""

    def observation(self, observation: str, turn: Turn) -> Piece:
        """An observation as it is appended behind the turn."""

    def retrieved(self, trace: str) -> Piece:
        """A step trace as it is shown to the policy."""


def text_argument(schema: Schema) -> str | None:
    """The name of the one argument of a tool that takes nothing but a text; None: its arguments are JSON."""
    properties = schema["function"]["parameters"].get("properties", {})
    if len(properties) != 1:
        return None
    (name, declared), *_ = properties.items()
    if not isinstance(declared, Mapping):  # `true` or `false`: a schema, too
        return None
    return name if declared.get("type") in ("string", ["string", "null"]) and "enum" not in declared else None


def in_tags(call: Call, schema: Schema | None) -> str:
    """A call as the text protocol writes it: a text as it is, else the arguments as JSON.

    Step traces and histories are kept in this form, whatever the policy writes: so the formats share a buffer.
    """
    name = None if schema is None else text_argument(schema)
    as_json = json.dumps(dict(call.arguments), ensure_ascii=False)
    text = call.arguments.get(name) if name is not None else None
    plain = isinstance(text, str) and read_object(text)[0] is None
    return f"<{call.name}>{text if plain else as_json}</{call.name}>"
