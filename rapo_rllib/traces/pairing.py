"""Give every result of a trajectory its call: the last one before it that has none yet, and the same id where both have one.

    segments as a file has them -> paired -> each call with its result behind it -> recorded.rendered_steps

Ids may come again later in a trajectory, and either side may lack them. Results in a row answer calls in the calls' order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Segment = dict[str, Any]  # its type: think, call, result, answer; from chats also raw (in the protocol already) and said

NO_RESULT, NO_CALL = "a call without a result", "a result without a call"


def paired(segments: Sequence[Segment], dropped: Counter[str]) -> list[Segment]:
    """Put each result behind its call, and leave out what has no counterpart.

    What was thought before a call at the end that never got a result is left out with it.

    Example: calls A, B and results a, b become A, a, B, b; calls A, B and the result b become B, b.

    Args:
        segments: in their order. A call may have an ``id``, and a ``message``: the number of the one that it shares with
            others; a result an ``id``, and the ``name`` of its tool. What an environment has ``said`` answers no call.
        dropped: counts the calls and results that are left out.
    """
    results = _results(segments, dropped)
    found: list[Segment] = []
    lost = -1  # how many segments stood before the last call without a result
    for place, segment in enumerate(segments):
        if segment["type"] == "call" and place not in results:
            dropped[NO_RESULT] += 1
            lost = len(found)
        elif segment["type"] != "result" and (segment["type"] != "think" or segment["text"].strip()):
            found += [segment, results[place]] if place in results else [segment]
    while lost == len(found) and found and found[-1]["type"] in ("think", "raw"):
        found.pop()
        lost -= 1
    return found


def _results(segments: Sequence[Segment], dropped: Counter[str]) -> dict[int, Segment]:
    """The result of each call that has one, by the call's place."""
    results: dict[int, Segment] = {}
    waiting, run, stretch = _Waiting(), list[Segment](), 0
    for place, segment in enumerate([*segments, {"type": "end"}]):
        if segment["type"] == "result":
            run.append(segment)
            continue
        if run:
            answered = dict(waiting.answered(run))
            results |= answered
            dropped += Counter({NO_CALL: len(run) - len(answered)})  # a sum of counters has no zeros
            run = []
            stretch += 1
        if segment["type"] == "said":
            stretch += 1
        elif segment["type"] == "call":
            message = segment.get("message", place)
            waiting.add(_Call(place, _id(segment), segment["tool"], message, stretch))
    return results


@dataclass(frozen=True)
class _Call:
    place: int
    id: str  # "": without
    tool: str
    message: int
    stretch: int  # between two turns of the environment


class _Waiting:
    """Calls that have no result yet."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._ids: set[str] = set()  # of all calls so far
        self._tools: set[str] = set()

    def add(self, call: _Call) -> None:
        """Have a call wait."""
        self._calls.append(call)
        self._ids |= {call.id} - {""}
        self._tools.add(call.tool)

    def answered(self, run: Sequence[Segment]) -> Iterator[tuple[int, Segment]]:
        """Yield place and result of the calls that results in a row answer; these wait no longer."""
        groups: dict[tuple[str | None, str | None], list[Segment]] = {}
        for result in run:
            groups.setdefault(self._meant(result), []).append(result)
        for id, tool in sorted(groups, key=lambda meant: (meant[0] is None, meant[0] == "", meant[1] is None)):
            fitting = [call for call in self._calls if (id is None or call.id == id) and (tool is None or call.tool == tool)]
            for call, result in zip(_latest(fitting, len(groups[id, tool])), groups[id, tool], strict=False):
                self._calls.remove(call)
                yield call.place, result

    def _meant(self, result: Segment) -> tuple[str | None, str | None]:
        """Id and tool of the calls that a result may answer; None: any. An id that no call has may be of one without."""
        id = _id(result)
        known = id if id in self._ids else "" if id else None
        tools = {call.tool for call in self._calls if call.id == id} if known else self._tools
        tool = str(result.get("name"))
        return known, tool if tool in tools else None


def _latest(calls: Sequence[_Call], count: int) -> Sequence[_Call]:
    """List the calls of the last message; while they are fewer than ``count`` also those of the message right before it."""
    start = len(calls)
    while start and len(calls) - start < count and calls[start - 1].stretch == calls[-1].stretch:
        message = calls[start - 1].message
        while start and calls[start - 1].message == message:
            start -= 1
    return calls[start:]


def _id(segment: Segment) -> str:
    return "" if segment.get("id") is None else str(segment["id"])
