"""Which call a result belongs to: ids that come again, ids that are missing or strange, calls and results that stand alone."""

import json
from collections import Counter

import pytest

from rapo_rllib.traces.chat import read_chat
from rapo_rllib.traces.pairing import NO_CALL, NO_RESULT
from rapo_rllib.traces.recorded import rendered_steps

USER = {"role": "user", "content": "Hurry."}
WAIT = {"role": "assistant", "content": "wait"}


def call(*calls: tuple[str, object]) -> dict:
    """A message that calls python with each code, under the id beside it; ``...``: without one."""
    listed = [({} if id is ... else {"id": id}) | {"function": {"name": "python", "arguments": code}} for code, id in calls]
    return {"role": "assistant", "content": "", "tool_calls": listed}


def said(text: str, id: object = ...) -> dict:
    return {"role": "tool", "content": text} | ({} if id is ... else {"tool_call_id": id})


def step(code: str, result: str) -> str:
    return f"<python>{code}</python>\n<result>\n{result}\n</result>\n"


def read(tmp_path, *messages: dict) -> tuple[list[str], Counter[str]]:
    path, dropped = tmp_path / "a.jsonl", Counter()
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Q"}, *messages]}))
    return [one for expert in read_chat(path, dropped) for one in expert.steps], dropped


@pytest.mark.parametrize(
    ("messages", "steps", "dropped"),
    [
        # one id in several turns
        ([call(("1+1", "0")), said("2", "0"), call(("2+1", "0")), said("3", "0")], ["1+1=2", "2+1=3"], {}),
        ([call(("1+1", "0")), call(("2+1", "0")), said("3", "0")], ["2+1=3"], {NO_RESULT: 1}),
        ([call(("1+1", "0")), said("2", "0"), call(("2+1", "0"))], ["1+1=2"], {NO_RESULT: 1}),
        (
            [call(("a", "0"), ("b", "1")), said("B", "1"), said("A", "0"), call(("c", "1")), said("C", "1")],
            ["a=A", "b=B", "c=C"],
            {},
        ),
        # one id for several calls of a message, and of messages in a row
        ([call(("a", "0"), ("b", "0")), said("A", "0"), said("B", "0")], ["a=A", "b=B"], {}),
        ([call(("a", "0")), call(("b", "0")), said("A", "0"), said("B", "0")], ["a=A", "b=B"], {}),
        # without ids on either side, or on one
        ([call(("a", ...), ("b", ...)), said("A"), said("B")], ["a=A", "b=B"], {}),
        ([call(("a", None), ("b", "")), said("A", None), said("B", "")], ["a=A", "b=B"], {}),
        ([call(("a", ...)), call(("b", ...)), said("A"), said("B")], ["a=A", "b=B"], {}),
        ([call(("a", ...)), call(("b", ...)), said("B")], ["b=B"], {NO_RESULT: 1}),
        ([call(("a", ...), ("b", ...)), said("A", "x"), said("B", "y")], ["a=A", "b=B"], {}),
        ([call(("a", "x"), ("b", "y")), said("A"), said("B")], ["a=A", "b=B"], {}),
        ([call(("a", "x"), ("b", "y")), said("A"), said("B", "y")], ["a=A", "b=B"], {}),
        ([call(("a", "x"), ("b", ...)), said("B", "z"), said("A", "x")], ["a=A", "b=B"], {}),
        ([call(("a", 7), ("b", 8)), said("B", "8"), said("A", "7")], ["a=A", "b=B"], {}),
        # results that belong to no call
        ([call(("a", "x")), said("A", "x"), said("again", "x")], ["a=A"], {NO_CALL: 1}),
        ([call(("a", "x"), ("b", ...)), said("A", "x"), said("again", "x")], ["a=A"], {NO_CALL: 1, NO_RESULT: 1}),
        ([call(("a", "x")), said("A", "y")], [], {NO_CALL: 1, NO_RESULT: 1, "no step": 1}),
        ([call(("b", "y")), said("B", "y"), said("A", "x"), call(("a", "x"))], ["b=B"], {NO_CALL: 1, NO_RESULT: 1}),
        ([call(("a", "x"))], [], {NO_RESULT: 1, "no step": 1}),
        ([call(("a", "x"), ("b", "y")), said("B", "y")], ["b=B"], {NO_RESULT: 1}),
    ],
)
def test_a_result_belongs_to_the_last_open_call_before_it(tmp_path, messages, steps, dropped) -> None:
    assert read(tmp_path, *messages) == ([step(*one.split("=")) for one in steps], dropped)


@pytest.mark.parametrize("ids", [("x", "x"), (..., ...), ("x", ...)])
def test_a_user_between_call_and_result_answers_no_call(tmp_path, ids) -> None:
    hurry = "\n<result>\nHurry.\n</result>\n"
    found = read(tmp_path, call(("a", ids[0])), USER, said("A", ids[1]), WAIT, USER, call(("b", "y")))
    assert found == ([step("a", "A") + hurry, "wait" + hurry], {NO_RESULT: 1})


def test_what_is_no_step_is_counted(tmp_path) -> None:
    image = {"role": "tool", "tool_call_id": "x", "content": [{"type": "image_url"}, {"type": "text", "text": "A"}]}
    steps, dropped = read(tmp_path, {"role": "assistant"}, USER, call(("a", "x")), image)
    assert (steps, dropped) == (
        [step("a", "A")],
        {"what was said before any step": 1, "a part of a message that is no text": 1},
    )


def test_thoughts_before_a_call_that_got_no_result_stay_if_something_follows(tmp_path) -> None:
    thought = {**call(("a", "x")), "content": "Try."}
    assert read(tmp_path, thought, call(("b", "y")), said("B", "y"))[0] == ["<think>Try.</think>" + step("b", "B")]
    assert read(tmp_path, call(("b", "y")), said("B", "y"), thought)[0] == [step("b", "B")]
    assert read(tmp_path, thought, WAIT)[0] == ["<think>Try.</think><answer>\\boxed{wait}</answer>"]


@pytest.mark.parametrize(
    ("order", "steps", "dropped"),
    [
        ("CcRr", ["C=R", "c=r"], {}),
        ("CcR", ["c=R"], {NO_RESULT: 1}),
        ("CRr", ["C=R"], {NO_CALL: 1}),
        ("RCr", ["C=r"], {NO_CALL: 1}),
        ("CcRKr", ["c=R", "K=r"], {NO_RESULT: 1}),
    ],
)
def test_segments_of_a_trace_file_have_no_ids(order, steps, dropped) -> None:
    segments = [{"type": "result" if one in "Rr" else "call", "tool": "python", "text": one} for one in order]
    counted: Counter[str] = Counter()
    assert rendered_steps(segments, counted) == tuple(step(*one.split("=")) for one in steps)
    assert counted == dropped
