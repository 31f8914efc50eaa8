"""OpenAI's protocol: what is read from bodies and headers, what is refused, and what answers look like to a client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from calculator_turns import CALCULATOR

from rapo_rllib.endpoint.conversation import Answer
from rapo_rllib.endpoint.wire import Form, read_chat
from rapo_rllib.errors import RequestError

USER = {"role": "user", "content": "3 + 5?"}


def body(**more: Any) -> bytes:
    return json.dumps({"model": "policy", "messages": [USER], **more}).encode()


def test_a_request_is_read() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "3 + 5"}'}}]
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        USER,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "8\ud800"},
    ]
    sent = body(messages=messages, tools=[CALCULATOR], stop="End", max_tokens=7, temperature=0, stream=True)
    ask, form = read_chat(sent, {"x-stainless-retry-count": "1"})
    assert ask.messages[0] == {"role": "system", "content": "Be brief."}
    assert ask.messages[2]["tool_calls"][0]["function"]["arguments"] == {"expression": "3 + 5"}
    assert ask.messages[3] == {"role": "tool", "content": "8?", "tool_call_id": "1"}  # half a character is none
    assert (ask.tools, ask.stop, ask.max_tokens, ask.again) == ((CALCULATOR,), ("End",), 7, True)
    assert form == Form(stream=True, usage=False)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"{", "the body is no JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "the request is refused"),
        (body(messages=[]), "messages: must not be empty"),
        (body(messages="hello"), "the request is refused"),
        (body(n=2), "leave n and logprobs out"),
        (body(logprobs=True), "leave n and logprobs out"),
        (body(response_format={"type": "json_object"}), "response_format is not served"),
        (body(max_tokens=0), "at least 1"),
        (body(stop=["End", ""]), "stop: "),
        (
            body(tools=[CALCULATOR], tool_choice={"type": "function", "function": {"name": "calculator"}}),
            "tool_choice: one tool by its name is not served",
        ),
        (
            body(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
            r"messages\[0\].content: only texts are served",
        ),
    ],
)
def test_what_is_not_served_is_refused(sent: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_chat(sent, {})


def test_tools_that_are_not_to_be_called() -> None:
    free, none = (read_chat(body(tools=[CALCULATOR], tool_choice=choice), {})[0] for choice in ("auto", "none"))
    assert free.tools == none.tools == (CALCULATOR,) and (free.reads_calls, none.reads_calls) == (True, False)
    assert free.key != none.key and list(free.prefixes()) == list(none.prefixes())


def test_answers() -> None:
    answer = Answer("", (("1", "calculator", "{}"),), "tool_calls", 10, 5)
    whole = json.loads(Form(False, False).body(answer))
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert whole["usage"]["total_tokens"] == 15
    *events, done, nothing = Form(True, True).body(answer).split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    first, last, usage = (json.loads(event.removeprefix("data: ")) for event in events)
    assert first["choices"][0]["delta"]["tool_calls"][0]["id"] == "1" and last["choices"][0]["finish_reason"] == "tool_calls"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 5
    assert len({part["id"] for part in (first, last, usage)}) == 1
