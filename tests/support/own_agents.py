"""Agents of users, as tests run them: functions with the `openai` client."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import httpx
from calculator_turns import CALCULATOR
from openai import AsyncOpenAI, BadRequestError, OpenAI

SYSTEM = "Solve the question step by step. Call tools where they help. Give the final answer as \\boxed{your answer}."


def client(base_url: str, **more: Any) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="none", **more)


def start(question: str) -> list[Any]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def said(asked: OpenAI, messages: list[Any], **more: Any) -> dict[str, Any]:
    """The message of an answer."""
    answer = asked.chat.completions.create(model="policy", messages=messages, **more)
    return answer.choices[0].message.model_dump(exclude_none=True)


def results_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """What the tool says to the calls of a message."""
    found = []
    for call in message.get("tool_calls", ()):
        expression = json.loads(call["function"]["arguments"])["expression"]
        content = str(eval(expression, {"__builtins__": {}}))
        found.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return found


def called(asked: OpenAI, messages: list[Any], tools: Any = (CALCULATOR,)) -> dict[str, Any]:
    """The message of an answer, which goes on in ``messages`` with what its calls return."""
    message = said(asked, messages, tools=list(tools))
    messages += [message, *results_of(message)]
    return message


def loop(question: str, base_url: str, tools: Any = (CALCULATOR,), turns: int = 8, stream: bool = False) -> str:
    """The usual loop: ask, call, ask again, until there is no call."""
    asked, messages = client(base_url), start(question)
    for _ in range(turns):
        message = streamed(asked, messages, tools) if stream else said(asked, messages, tools=list(tools))
        if not message.get("tool_calls"):
            return message.get("content") or ""
        messages += [message, *results_of(message)]
    return ""


def streamed(asked: OpenAI, messages: list[Any], tools: Any) -> dict[str, Any]:
    content, calls, finish = "", [], None
    for chunk in asked.chat.completions.create(
        model="policy", messages=messages, tools=list(tools), stream=True, stream_options={"include_usage": True}
    ):
        if not chunk.choices:
            assert chunk.usage is not None and chunk.usage.completion_tokens > 0
            continue
        delta, finish = chunk.choices[0].delta, chunk.choices[0].finish_reason or finish
        content += delta.content or ""
        calls += [call.model_dump(exclude={"index"}) for call in delta.tool_calls or ()]
    assert finish == ("tool_calls" if calls else "stop")
    return {"role": "assistant", "content": content or None, **({"tool_calls": calls} if calls else {})}


async def async_loop(question: str, base_url: str) -> float:
    """Two conversations at once; the reward is a number."""
    asked = AsyncOpenAI(base_url=base_url, api_key="none")

    async def one(system: str) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        answer = await asked.chat.completions.create(model="policy", messages=messages)  # type: ignore[arg-type]
        return answer.choices[0].message.content or ""

    await asyncio.gather(one("First."), one("Second."))
    return 0.5


def with_tools_streamed(question: str, base_url: str) -> str:
    return loop(question, base_url, stream=True)


def rewrites(question: str, base_url: str) -> str:
    """Shortens what a tool said, and goes on from there."""
    asked, messages = client(base_url), start(question)
    first = called(asked, messages)
    said(asked, [*messages[:-1], {**messages[-1], "content": "8, as everybody knows"}], tools=[CALCULATOR])
    assert len(first["tool_calls"]) == 1
    return said(asked, messages, tools=[CALCULATOR])["content"]


def stops(question: str, base_url: str) -> str:
    """Ends the policy's turn itself, where a result is to stand."""
    asked, messages = client(base_url), start(question)
    first = asked.chat.completions.create(model="policy", messages=messages, stop=["Observation:"]).choices[0]
    assert (first.finish_reason, first.message.content) == ("stop", "Thought: 8\n")
    messages += [first.message.model_dump(exclude_none=True), {"role": "user", "content": "Observation: 8"}]
    return said(asked, messages)["content"]


def never_asks(question: str, base_url: str) -> str:
    return "\\boxed{9}"


def floods(question: str, base_url: str) -> str:
    while True:
        said(client(base_url, max_retries=0), start(question))


def asks_too_much(question: str, base_url: str, then: str = "asks less", words: int = 4000) -> str:
    asked, messages = client(base_url), start(question)
    first = said(asked, messages)
    messages += [first, {"role": "user", "content": "more " * words}]
    try:
        said(asked, messages)
    except BadRequestError as error:
        assert "maximum context length" in str(error)
        if then == "raises":
            raise
        if then == "returns":
            return first["content"]
    messages[-1] = {"role": "user", "content": "shorter"}
    return said(asked, messages)["content"]


def disconnects(question: str, base_url: str) -> str:
    """Leaves in the middle of its first stream, and asks the same again."""
    body = {"model": "policy", "messages": start(question), "stream": True}
    try:
        httpx.post(f"{base_url}/chat/completions", json=body, timeout=0.2)
    except httpx.TimeoutException:
        time.sleep(0.3)
    answer = httpx.post(f"{base_url}/chat/completions", json={**body, "stream": False}, timeout=60).json()
    return str(answer["choices"][0]["message"]["content"])


def leaves_for_good(question: str, base_url: str, stays_s: float = 1.0) -> str:
    """Has one answer, leaves before the next, and returns the first."""
    first = said(client(base_url), start(question))
    messages = [*start(question), first, {"role": "user", "content": "Sure?"}]
    try:
        httpx.post(f"{base_url}/chat/completions", json={"model": "policy", "messages": messages}, timeout=0.2)
    except httpx.TimeoutException:
        time.sleep(stays_s)
    return first["content"]


written = threading.Event()


def ends_while_it_asks(question: str, base_url: str) -> str:
    """Ends when ``written`` is set, while a second request of its own is under way."""
    messages = start(question)
    called(client(base_url), messages)
    body = {"model": "policy", "messages": messages, "tools": [CALCULATOR]}
    threading.Thread(target=httpx.post, args=[f"{base_url}/chat/completions"], kwargs={"json": body, "timeout": 60}).start()
    written.wait(30)
    return "\\boxed{9}"


def sums_up(question: str, base_url: str) -> str:
    """Calls a tool, and asks for its last turn with ``tool_choice: none``."""
    asked, messages = client(base_url), start(question)
    called(asked, messages)
    last = asked.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR], tool_choice="none")
    assert not last.choices[0].message.tool_calls and last.choices[0].finish_reason == "stop"
    return last.choices[0].message.content or ""


def crashes(question: str, base_url: str) -> str:
    said(client(base_url), start(question))
    raise RuntimeError("lost my keys")


def hangs(question: str, base_url: str) -> str:
    said(client(base_url), start(question))
    threading.Event().wait()
    return ""


def returns_nothing(question: str, base_url: str) -> None:
    said(client(base_url), start(question))


def wants(question: str, base_url: str, level: int) -> str:
    return question


sent: list[list[Any]] = []  # messages of each request of ``two_questions``


def two_questions(question: str, base_url: str, tools: Any = (CALCULATOR,), second: str = "And 9 + 1?") -> str:
    """Asks, answers calls until there is none, and asks once more in the same conversation."""
    asked, messages, offered = client(base_url), start(question), {"tools": list(tools)} if tools else {}
    for _ in range(2):
        while messages[-1]["role"] != "assistant":
            sent.append(list(messages))
            message = said(asked, messages, **offered)
            messages += [message, *results_of(message)]
        messages.append({"role": "user", "content": second})
    return str(messages[-2]["content"])


def two_long_questions(question: str, base_url: str, tools: Any) -> str:
    return two_questions(question, base_url, tools, "And 9 + 1? " * 40)


def asks_twice(question: str, base_url: str, tools: Any) -> str:
    """Has two samples of a turn, and answers the calls of both."""
    asked, content = client(base_url), ""
    histories = [start(question), start(question)]
    for _ in range(2):
        for messages in histories:
            content = called(asked, messages, tools).get("content", "")
    return content
