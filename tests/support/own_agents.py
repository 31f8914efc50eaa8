"""Agents of users, as tests run them: functions with the `openai` client."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from calculator_turns import CALCULATOR
from openai import AsyncOpenAI, BadRequestError, OpenAI

SYSTEM = "Solve the question step by step. Call tools where they help. Give the final answer as \\boxed{your answer}."
clients: dict[str, OpenAI] = {}


def client(base_url: str, **more: Any) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="none", **more)


def start(question: str) -> list[Any]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def result_of(call: Any) -> dict[str, Any]:
    expression = json.loads(call.function.arguments)["expression"]
    return {"role": "tool", "tool_call_id": call.id, "content": str(eval(expression, {"__builtins__": {}}))}


def loop(question: str, base_url: str, tools: Any = (CALCULATOR,), turns: int = 8, stream: bool = False) -> str:
    """The usual loop: ask, call, ask again, until there is no call."""
    asked, messages = client(base_url), start(question)
    for _ in range(turns):
        if stream:
            message = streamed(asked, messages, tools)
        else:
            message = asked.chat.completions.create(model="policy", messages=messages, tools=list(tools)).choices[0].message
        messages.append(message if stream else message.model_dump(exclude_none=True))
        calls = message.get("tool_calls") if stream else message.tool_calls
        if not calls:
            return (message["content"] if stream else message.content) or ""
        if stream:
            expression = json.loads(calls[0]["function"]["arguments"])["expression"]
            said = str(eval(expression, {"__builtins__": {}}))
            messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": said})
        else:
            messages += [result_of(call) for call in calls]
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


def without_retrieval(question: str, base_url: str) -> str:
    clients[base_url] = OpenAI(base_url=base_url, api_key="none", default_headers={"X-RAPO-Retrieve": "off"})
    asked, messages = clients.pop(base_url), start(question)
    while True:
        message = asked.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR]).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        messages += [result_of(call) for call in message.tool_calls]


def rewrites(question: str, base_url: str) -> str:
    """Shortens what a tool said, and goes on from there."""
    asked, messages = client(base_url), start(question)
    first = asked.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR]).choices[0].message
    messages.append(first.model_dump(exclude_none=True))
    call = first.tool_calls[0]
    long = [*messages, {**result_of(call), "content": "8, as everybody knows"}]
    asked.chat.completions.create(model="policy", messages=long, tools=[CALCULATOR])
    short = [*messages, result_of(call)]
    said = asked.chat.completions.create(model="policy", messages=short, tools=[CALCULATOR])
    return said.choices[0].message.content or "none"


def stops(question: str, base_url: str) -> str:
    """Ends the policy's turn itself, where a result is to stand."""
    asked, messages = client(base_url), start(question)
    first = asked.chat.completions.create(model="policy", messages=messages, stop=["Observation:"]).choices[0]
    assert (first.finish_reason, first.message.content) == ("stop", "Thought: 8\n")
    messages += [first.message.model_dump(exclude_none=True), {"role": "user", "content": "Observation: 8"}]
    return asked.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""


def never_asks(question: str, base_url: str) -> str:
    return "\\boxed{9}"


def floods(question: str, base_url: str) -> str:
    while True:
        client(base_url, max_retries=0).chat.completions.create(model="policy", messages=start(question))


def asks_too_much(question: str, base_url: str, recovers: bool = True) -> str:
    asked, messages = client(base_url), start(question)
    said = asked.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""
    longer = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "more " * 4000}]
    try:
        asked.chat.completions.create(model="policy", messages=longer)
    except BadRequestError as error:
        assert "maximum context length" in str(error)
        if not recovers:
            raise
    longer[-1] = {"role": "user", "content": "shorter"}
    return asked.chat.completions.create(model="policy", messages=longer).choices[0].message.content or ""


def disconnects(question: str, base_url: str) -> str:
    """Leaves in the middle of its first stream, and asks the same again."""
    body = {"model": "policy", "messages": start(question), "stream": True}
    try:
        httpx.post(f"{base_url}/chat/completions", json=body, timeout=0.2)
    except httpx.TimeoutException:
        time.sleep(0.3)
    answer = httpx.post(f"{base_url}/chat/completions", json={**body, "stream": False}, timeout=60).json()
    return str(answer["choices"][0]["message"]["content"])


def leaves_for_good(question: str, base_url: str) -> str:
    """Has one answer, and leaves before the next."""
    said = client(base_url).chat.completions.create(model="policy", messages=start(question)).choices[0].message.content
    messages = [*start(question), {"role": "assistant", "content": said}, {"role": "user", "content": "Sure?"}]
    try:
        httpx.post(f"{base_url}/chat/completions", json={"model": "policy", "messages": messages}, timeout=0.2)
    except httpx.TimeoutException:
        time.sleep(1.0)
    return said or ""


written = threading.Event()


def ends_while_it_asks(question: str, base_url: str) -> str:
    """Ends when ``written`` is set, while a second request of its own is under way."""
    asked, messages = client(base_url), start(question)
    said = asked.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR]).choices[0].message
    messages += [said.model_dump(exclude_none=True), *map(result_of, said.tool_calls)]
    body = {"model": "policy", "messages": messages, "tools": [CALCULATOR]}
    threading.Thread(target=httpx.post, args=[f"{base_url}/chat/completions"], kwargs={"json": body, "timeout": 60}).start()
    written.wait(30)
    return "\\boxed{9}"


def gives_up(question: str, base_url: str) -> str:
    """Sends a request behind its turn, does not wait for the answer, and returns its own."""
    asked, messages = client(base_url), start(question)
    said = asked.chat.completions.create(model="policy", messages=messages).choices[0].message.content
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Sure?"}]
    try:
        httpx.post(f"{base_url}/chat/completions", json={"model": "policy", "messages": messages}, timeout=0.3)
    except httpx.TimeoutException:
        return "\\boxed{9}"
    return ""


def sums_up(question: str, base_url: str) -> str:
    """Calls a tool, and asks for its last turn with ``tool_choice: none``."""
    asked, messages = client(base_url), start(question)
    said = asked.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR]).choices[0].message
    messages += [said.model_dump(exclude_none=True), *map(result_of, said.tool_calls)]
    last = asked.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR], tool_choice="none")
    assert not last.choices[0].message.tool_calls and last.choices[0].finish_reason == "stop"
    return last.choices[0].message.content or ""


def takes_what_it_has(question: str, base_url: str) -> str:
    """Is refused for its length, and returns an answer."""
    asked, messages = client(base_url), start(question)
    said = asked.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""
    longer = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "more " * 1500}]
    try:
        asked.chat.completions.create(model="policy", messages=longer)
    except BadRequestError:
        return said
    return ""


def writes_long_texts(question: str, base_url: str) -> str:
    asked = client(base_url)
    said = question + asked.completions.create(model="policy", prompt=question).choices[0].text
    try:
        asked.completions.create(model="policy", prompt=said + "9 " * 100_000)
    except BadRequestError:
        return "\\boxed{9}"
    return ""


def notes_its_process(base_url: str, path: str) -> None:
    Path(path).write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(60)


def crashes(question: str, base_url: str) -> str:
    client(base_url).chat.completions.create(model="policy", messages=start(question))
    raise RuntimeError("lost my keys")


def hangs(question: str, base_url: str) -> str:
    client(base_url).chat.completions.create(model="policy", messages=start(question))
    threading.Event().wait()
    return ""


def returns_nothing(question: str, base_url: str) -> None:
    client(base_url).chat.completions.create(model="policy", messages=start(question))


def texts(question: str, base_url: str) -> str:
    """The older protocol: a text goes on."""
    asked, said = client(base_url), f"Question: {question}\nAnswer:"
    for _ in range(2):
        said += asked.completions.create(model="policy", prompt=said, max_tokens=40).choices[0].text + "\nSo:"
    return said


def wants(question: str, base_url: str, level: int) -> str:
    return question


sent: list[list[Any]] = []  # messages of each request of ``two_questions``


def two_questions(question: str, base_url: str, tools: Any = (CALCULATOR,), second: str = "And 9 + 1?") -> str:
    """Asks, answers calls until there is none, and asks once more in the same conversation."""
    asked, messages, offered = client(base_url), start(question), {"tools": list(tools)} if tools else {}
    for _ in range(2):
        while messages[-1]["role"] != "assistant":
            sent.append(list(messages))
            message = asked.chat.completions.create(model="policy", messages=messages, **offered).choices[0].message
            messages += [message.model_dump(exclude_none=True), *map(result_of, message.tool_calls or ())]
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
            message = asked.chat.completions.create(model="policy", messages=messages, tools=tools).choices[0].message
            messages += [message.model_dump(exclude_none=True), *map(result_of, message.tool_calls or ())]
            content = message.content or ""
    return content
