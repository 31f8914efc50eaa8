"""Pair every result of a trajectory with its call: the last call before it without a result, of the same id if both have one.

    segments as a file has them -> paired -> each call with its result behind it -> recorded.rendered_steps

An id may come again later in a trajectory, and calls and results may lack ids. Results in a row answer calls in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Segment = dict[str, Any]  # its type: think, call, result, answer; from chats also raw (in the protocol already) and said

NO_RESULT, NO_CALL = "a call without a result", "a result without a call"
OTHER = "\n"  # stands for ids that no call has


def paired(segments: Sequence[Segment], dropped: Counter[str]) -> list[Segment]:
    """Put each result behind its call, and leave out calls and results that have no counterpart.

    If the trajectory ends with a call that never got a result, the thoughts right before it are left out, too.

    Example: calls A, B and results a, b become A, a, B, b; calls A, B and the result b become B, b.

    Args:
        segments: in their order. A call may have an ``id``, and the number of its ``message``, which several calls may share; a
            result may have an ``id``. A segment of type ``said``, by an environment, answers no call.
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
    """Find the result of each call that has one, by the call's place."""
    results: dict[int, Segment] = {}
    waiting, run, stretch = list[_Call](), list[Segment](), 0
    for place, segment in enumerate([*segments, {"type": "end"}]):
        if segment["type"] == "result":
            run.append(segment)
            continue
        if run:
            answered = dict(_answered(run, waiting))
            results |= answered
            waiting = [call for call in waiting if call.place not in answered]
            dropped += Counter({NO_CALL: len(run) - len(answered)})  # a sum of counters has no zeros
            run = []
            stretch += 1
        if segment["type"] == "said":
            stretch += 1
        elif segment["type"] == "call":
            waiting.append(_Call(place, _id(segment), segment.get("message", place), stretch))
    return results


@dataclass(frozen=True)
class _Call:
    place: int
    id: str  # "": it has none
    message: int
    stretch: int  # between two turns of the environment


def _answered(run: Sequence[Segment], waiting: Sequence[_Call]) -> Iterator[tuple[int, Segment]]:
    """Match results in a row with waiting calls, and yield the place of each answered call with its result.

    A result answers the call with its id, or, if none has it, a call without an id. A result without an id answers any left.
    """
    left, ids = list(waiting), {call.id for call in waiting} - {""}
    groups: dict[str, list[Segment]] = {id: [] for id in (*sorted(ids), OTHER, "")}
    for result in run:
        id = _id(result)
        groups[id if not id or id in ids else OTHER].append(result)
    for id, results in groups.items():
        fitting = [call for call in left if not id or call.id == ("" if id == OTHER else id)]
        for call, result in zip(_latest(fitting, len(results)), results, strict=False):
            left.remove(call)
            yield call.place, result


def _latest(calls: Sequence[_Call], count: int) -> Sequence[_Call]:
    """List the calls of the last message; while they are fewer than ``count``, add those of the message right before."""
    start = len(calls)
    while start and len(calls) - start < count and calls[start - 1].stretch == calls[-1].stretch:
        message = calls[start - 1].message
        while start and calls[start - 1].message == message:
            start -= 1
    return calls[start:]


def _id(segment: Segment) -> str:
    return "" if segment.get("id") is None else str(segment["id"])
