"""Match an agent's requests to the recorded sequences of its trajectory. Pure: messages in, places in token sequences out.

    request --Ask.prefixes--> a key for each of its prefixes --Recorder.find--> Place --claim--> generate --record--> next one

Generated tokens are found by the message in which the agent got them, and are never encoded again: a request continues after
its longest prefix that ends with such a message. Mostly that is the end of a sequence. If the agent has rewritten its history,
or if two requests continue at the same place, it is a branch: a new sequence that begins with the tokens up to that place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from rapo_rllib.errors import RequestError
from rapo_rllib.protocol.template import Message
from rapo_rllib.protocol.turns import Schema


@dataclass(frozen=True)
class Answer:
    """Answer of the policy, as an agent gets it."""

    text: str
    calls: tuple[tuple[str, str, str], ...]  # id, name, arguments as JSON
    finish: str  # stop, tool_calls or length
    prompt_tokens: int
    completion_tokens: int

    @property
    def message(self) -> Message:
        """The turn as an agent sends it back."""
        named = [(id, {"name": name, "arguments": arguments}) for id, name, arguments in self.calls]
        calls = [{"id": id, "type": "function", "function": function} for id, function in named]
        return {"role": "assistant", "content": self.text, **({"tool_calls": calls} if calls else {})}


@dataclass
class Ask:
    """One request with its answer, for which another thread waits."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Schema, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    reads_calls: bool = True  # False: a call stays text
    again: bool = False  # the client says that it has asked this before
    answer: Future[Answer] = field(default_factory=Future)
    client_gone: bool = False  # before it had the answer
    repeats: list[Ask] = field(default_factory=list)  # the same request, asked again

    def __post_init__(self) -> None:
        self.answer.set_running_or_notify_cancel()  # a server that stops must not cancel the generation

    @property
    def lost(self) -> bool:
        """Whether no client has got the answer or waits for it."""
        return self.client_gone and all(repeat.lost for repeat in self.repeats)

    @property
    def answered(self) -> bool:
        """Whether the policy has written its answer."""
        return self.answer.done() and self.answer.exception() is None

    @property
    def refused(self) -> bool:
        """Whether it was answered with an error."""
        return self.answer.done() and self.answer.exception() is not None

    @property
    def key(self) -> str:
        """Digest that is equal for equal requests."""
        asked = [_said(message) for message in self.messages]
        return _digest("", [asked, self.tools, self.reads_calls, self.max_tokens, self.stop])

    def said(self, matched: int = 0) -> str:
        """Join the texts of all messages after the first ``matched`` ones."""
        return "\n".join(message["content"] for message in self.messages[matched:])

    def prefixes(self) -> Iterator[tuple[int, str]]:
        """Yield (number of messages, key) of each prefix of the messages, the longest first."""
        yield from reversed(list(enumerate(_chain(self.tools, self.messages), start=1)))

    def answered_key(self, answer: Answer) -> str:
        """Compute the key of this request followed by its answer: the key of a prefix of later requests."""
        return _chain(self.tools, [*self.messages, answer.message])[-1]

    def refuse(self, why: str) -> None:
        """Answer with an error, unless there is an answer already."""
        if not self.answer.done():
            self.answer.set_exception(RequestError(why))

    def answer_as(self, earlier: Ask) -> None:
        """Take the answer of an equal, earlier request, as soon as there is one."""
        earlier.repeats.append(self)
        earlier.answer.add_done_callback(self._take)

    def _take(self, done: Future[Answer]) -> None:
        error = done.exception()
        if error is None:
            self.answer.set_result(done.result())
        else:
            self.answer.set_exception(error)


@dataclass(frozen=True)
class Point:
    """The end of a turn that the policy generated: turn ``turns`` of ``sequence``, counted from 1."""

    sequence: int
    turns: int


@dataclass(frozen=True)
class Place:
    """Place at which a request continues: its first ``matched`` messages are the tokens up to ``behind``."""

    sequence: int  # to which the policy's turn is written
    behind: Point | None = None  # None: nothing of it is recorded, and the sequence begins with a prompt
    matched: int = 0

    @property
    def is_branch(self) -> bool:
        """Whether it branches off another sequence."""
        return self.behind is not None and self.behind.sequence != self.sequence


class Recorder:
    """The sequences of one trajectory, found by their messages.

    Example: after the request ``[s, u]`` was answered by ``a``, ``[s, u, a, t]`` continues after turn 1 of sequence 0; asked
    once more it is a branch there, sequence 1; and ``[s, v]`` begins sequence 2.
    """

    def __init__(self) -> None:
        self._turns: list[int] = []  # number of turns of each sequence, with one that is being generated
        self._points: dict[str, list[Point]] = {}
        self._asked: dict[str, Ask] = {}

    def earlier(self, ask: Ask) -> Ask | None:
        """Find the earlier request that ``ask`` repeats: its client says so, or the earlier client has gone without the answer.

        Otherwise, or if the earlier one was refused, equal requests are two samples. A request that repeats none is remembered.
        """
        key = ask.key
        known = self._asked.get(key)
        if known is not None and (ask.again or known.lost) and not known.refused:
            return known
        self._asked[key] = ask
        return None

    def find(self, ask: Ask) -> Place:
        """Find the place after the longest recorded prefix, at the end of a sequence if one ends with that prefix."""
        for length, key in ask.prefixes():
            points = self._points.get(key)
            if points:
                free = [point for point in points if point.turns == self._turns[point.sequence]]
                behind = (free or points)[-1]
                return Place(behind.sequence if free else len(self._turns), behind, length)
        return Place(len(self._turns))

    def claim(self, place: Place) -> None:
        """Begin a turn at ``place``: another request at the same end of a sequence then makes a branch."""
        if place.sequence == len(self._turns):
            self._turns.append(0)
        self._turns[place.sequence] += 1

    def record(self, place: Place, ask: Ask, answer: Answer) -> None:
        """Remember the policy's answer at a place that was claimed."""
        point = Point(place.sequence, self._turns[place.sequence])
        self._points.setdefault(ask.answered_key(answer), []).append(point)


def _chain(tools: Sequence[Schema], messages: Sequence[Message]) -> list[str]:
    """Compute the key of each prefix of a conversation."""
    keys, key = [], _digest("tools", tools)
    for message in messages:
        key = _digest(key, _said(message))
        keys.append(key)
    return keys


def _said(message: Message) -> list[Any]:
    """Strip what clients change when they send a message back: ids, blanks around a turn, the order of arguments."""
    content, role = message.get("content") or "", message["role"]
    calls = [(call["function"]["name"], _value(call["function"]["arguments"])) for call in message.get("tool_calls", ())]
    return [role, content.strip() if role == "assistant" else content, calls]


def _value(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _digest(before: str, said: Any) -> str:
    return sha256((before + json.dumps(said, sort_keys=True, default=str)).encode("utf-8", "surrogatepass")).hexdigest()
