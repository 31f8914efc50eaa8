"""Requests of an agent matched to what was recorded: prefixes, branches, retries. No model, no server."""

from __future__ import annotations

from typing import Any

import pytest

from rapo_rllib.endpoint.conversation import Answer, Ask, Place, Point, Recorder
from rapo_rllib.errors import RequestError

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 + 5?"}


def tool(said: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": said}


def calling(expression: str) -> Answer:
    return Answer("", (("1", "add", f'{{"expression": "{expression}", "unit": ""}}'),), "tool_calls", 10, 5)


def said(text: str) -> Answer:
    return Answer(text, (), "stop", 10, 5)


def ask(*messages: Any, **more: Any) -> Ask:
    return Ask(tuple(one.message if isinstance(one, Answer) else one for one in messages), **more)


def answered(recorder: Recorder, asked: Ask, answer: Answer) -> Place:
    """What happens to a request: found, claimed, generated, recorded."""
    place = recorder.find(asked)
    recorder.claim(place)
    recorder.record(place, asked, answer)
    asked.answer.set_result(answer)
    return place


def test_a_conversation_is_one_sequence() -> None:
    recorder, (first, second) = Recorder(), (calling("3 + 5"), said("It is 8."))
    assert answered(recorder, ask(SYSTEM, USER), first) == Place(0)
    assert answered(recorder, ask(SYSTEM, USER, first, tool("8")), second) == Place(0, Point(0, 1), 3)
    assert recorder.find(ask(SYSTEM, USER, first, tool("8"), second, USER)) == Place(0, Point(0, 2), 5)


def test_what_clients_change_is_no_other_history() -> None:
    recorder, first = Recorder(), Answer("I add.", (("1", "add", '{"a": 1, "b": [2]}'),), "tool_calls", 1, 1)
    answered(recorder, ask(SYSTEM, USER), first)
    sent = {
        "role": "assistant",
        "content": "\nI add. ",
        "tool_calls": [{"id": "other", "type": "function", "function": {"name": "add", "arguments": {"b": [2], "a": 1}}}],
    }
    assert recorder.find(ask(SYSTEM, USER, sent, tool("3"))) == Place(0, Point(0, 1), 3)
    nothing = said("")
    answered(recorder, ask(SYSTEM), nothing)
    assert recorder.find(ask(SYSTEM, {"role": "assistant", "content": None}, USER)) == Place(1, Point(1, 1), 2)


def test_a_rewritten_history_is_a_branch() -> None:
    recorder, turns = Recorder(), [calling("3 + 5"), calling("8 + 1"), said("9")]
    history: list[Any] = [SYSTEM, USER]
    for turn, result in zip(turns, ("8", "9", ""), strict=True):
        answered(recorder, ask(*history), turn)
        history += [turn, tool(result)]
    shortened = ask(SYSTEM, USER, turns[0], tool("8, and more"))
    place = answered(recorder, shortened, said("8"))
    assert place == Place(1, Point(0, 1), 3) and place.is_branch
    assert recorder.find(ask(SYSTEM, USER, turns[0], tool("8, and more"), said("8"), USER)) == Place(1, Point(1, 1), 5)
    edited = ask(SYSTEM, USER, calling("4 + 4"), tool("8"))  # a turn that nobody generated
    assert recorder.find(edited) == Place(2)


def test_another_system_prompt_or_other_tools_begin_anew() -> None:
    recorder, first = Recorder(), said("8")
    answered(recorder, ask(SYSTEM, USER), first)
    assert recorder.find(ask(USER, first, USER)) == Place(1)
    assert recorder.find(ask(SYSTEM, USER, first, USER, tools=({"type": "function"},))) == Place(1)


def test_two_requests_at_one_place_are_two_sequences() -> None:
    recorder, first = Recorder(), said("8")
    answered(recorder, ask(SYSTEM, USER), first)
    asked = ask(SYSTEM, USER, first, USER)
    place = recorder.find(asked)
    recorder.claim(place)
    beside = recorder.find(ask(SYSTEM, USER, first, USER))
    assert (place, beside) == (Place(0, Point(0, 1), 3), Place(1, Point(0, 1), 3))
    recorder.claim(beside)
    both = said("16")  # they happen to be answered alike; each goes on in a sequence of its own
    recorder.record(place, asked, both)
    recorder.record(beside, asked, both)
    further = [SYSTEM, USER, first, USER, both, USER]
    assert answered(recorder, ask(*further), both).sequence == 1
    assert answered(recorder, ask(*further), both).sequence == 0
    assert recorder.find(ask(*further)).sequence == 2


def test_equal_requests_are_samples_unless_one_is_a_retry() -> None:
    recorder = Recorder()
    first, second = ask(SYSTEM, USER), ask(SYSTEM, USER)
    assert recorder.earlier(first) is None
    assert recorder.earlier(second) is None  # both wait for an answer: two samples
    second.client_gone = True
    third = ask(SYSTEM, USER)
    assert recorder.earlier(third) is second
    third.answer_as(second)
    assert recorder.earlier(ask(SYSTEM, USER)) is None  # the third one waits
    second.answer.set_result(said("8"))
    assert third.answer.result().text == "8" and not second.lost
    assert recorder.earlier(ask(SYSTEM, USER, max_tokens=5, again=True)) is None
    assert recorder.earlier(ask(SYSTEM, USER, max_tokens=5, again=True)) is not None


def test_a_refused_request_may_be_asked_again() -> None:
    recorder, first = Recorder(), ask(SYSTEM, USER)
    assert recorder.earlier(first) is None
    first.refuse("too long")
    with pytest.raises(RequestError, match="too long"):
        first.answer.result()
    assert recorder.earlier(ask(SYSTEM, USER, again=True)) is None
