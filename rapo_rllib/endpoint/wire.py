"""OpenAI's protocol: read request bodies, which vLLM's classes check, and write the bodies of answers.

    body --read_chat--> Ask, Form;   Answer --Form.body--> JSON, or server-sent events

The job decides how tokens are sampled: what a request says of it (top_p, penalties, seeds) is ignored, a ``tool_choice`` of
``required`` counts as ``auto``, and ``parallel_tool_calls`` is not read. A request that would be answered wrongly is refused.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMClientError

from rapo_rllib.endpoint.conversation import Answer, Ask
from rapo_rllib.errors import RequestError
from rapo_rllib.protocol.template import Message
from rapo_rllib.protocol.turns import Schema

MODEL = "policy"
RETRY = "x-stainless-retry-count"  # a header of OpenAI's clients
JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(frozen=True)
class Form:
    """Form in which a request wants its answer."""

    stream: bool
    usage: bool  # of tokens, in a last chunk of a stream

    @property
    def media_type(self) -> str:
        """The type of the body."""
        return EVENTS if self.stream else JSON

    def body(self, answer: Answer) -> str:
        """Write an answer in one piece, or as the events of a stream: the turn as a whole, its end, its usage if asked for."""
        told = {"finish_reason": answer.finish}
        kind = "chat.completion.chunk" if self.stream else "chat.completion"
        head = {"id": f"rapo-{secrets.token_hex(8)}", "object": kind, "created": int(time.time()), "model": MODEL}
        blank: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": None}
        if not self.stream:
            return json.dumps({**head, "choices": [blank | {"message": _message(answer), **told}], "usage": _usage(answer)})
        said: list[dict[str, Any]] = [{"delta": _message(answer, stream=True)}, {"delta": {}, **told}]
        parts: list[dict[str, Any]] = [{"choices": [blank | one]} for one in said]
        parts += [{"choices": [], "usage": _usage(answer)}] if self.usage else []
        return "".join(f"data: {json.dumps({**head, **part})}\n\n" for part in parts) + "data: [DONE]\n\n"


def read_chat(body: bytes, headers: Mapping[str, str]) -> tuple[Ask, Form]:
    """Read a request for a turn. Raises ``RequestError`` saying what is wrong with it, or not served."""
    data = _mapping(body)
    try:
        asked = ChatCompletionRequest(**deepcopy(data))  # of a copy: it reads some lists only once
    except (ValueError, TypeError, VLLMClientError) as wrong:
        raise RequestError(f"the request is refused: {wrong}") from wrong
    _check_served(asked)
    tools = tuple(_schema(tool) for tool in asked.tools or ())
    names = [schema["function"]["name"] for schema in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(f"tools: two are called {twice!r}")
    ask = Ask(
        messages=tuple(_plain(message, index) for index, message in enumerate(data["messages"])),
        tools=tools,
        max_tokens=_most_tokens(asked.max_completion_tokens, vars(asked)["max_tokens"]),
        stop=_stop(asked.stop),
        reads_calls=asked.tool_choice != "none",  # the prompt has the tools in any case, so that the history still matches
        again=headers.get(RETRY, "0").strip() not in ("", "0"),
    )
    if not ask.messages:
        raise RequestError("messages: must not be empty")
    return ask, Form(bool(asked.stream), bool(asked.stream_options and asked.stream_options.include_usage))


def models() -> str:
    """Return the body of the list of models."""
    model = {"id": MODEL, "object": "model", "created": int(time.time()), "owned_by": "rapo_rllib"}
    return json.dumps({"object": "list", "data": [model]})


def error(message: str, status: int) -> str:
    """Return the body of an error."""
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": status}})


def _mapping(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace"))  # no lone surrogates
    except (ValueError, RecursionError) as wrong:
        raise RequestError(f"the body is no JSON: {wrong}") from wrong
    if not isinstance(data, dict):
        raise RequestError("the body must be a JSON object")
    return data


def _check_served(asked: ChatCompletionRequest) -> None:
    if (asked.n or 1) != 1 or asked.logprobs or asked.prompt_logprobs is not None:
        raise RequestError("one choice is served for a request, without logprobs: leave n and logprobs out")
    structured = asked.response_format is not None and asked.response_format.type != "text"
    if structured or asked.structured_outputs is not None:
        raise RequestError("response_format is not served: it would change what the policy samples; ask for it in words")
    if asked.tool_choice not in (None, "none", "auto", "required"):
        raise RequestError("tool_choice: one tool by its name is not served: it would change what the policy samples")


def _stop(stop: Any) -> tuple[str, ...]:
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in found:
        raise RequestError("stop: an empty text would end every turn; leave it out")
    return found


def _most_tokens(*given: int | None) -> int | None:
    """Return the first limit that is given. One below 1 is refused here, as the engine would do so after a place is claimed."""
    most = next((value for value in given if value is not None), None)
    if most is not None and most < 1:
        raise RequestError(f"max_tokens = {most}: must be at least 1")
    return most


def _schema(tool: Any) -> Schema:
    function = tool.function
    parameters = function.parameters or {"type": "object", "properties": {}}
    if not isinstance(parameters.get("properties", {}), Mapping):
        raise RequestError(f"tools: the properties of {function.name!r} must be an object")
    described = {"name": function.name, "description": function.description or "", "parameters": parameters}
    return {"type": "function", "function": described}


def _plain(message: Mapping[str, Any], index: int) -> Message:
    """Reduce a message to the fields that templates read; arguments of calls become objects."""
    role = message.get("role")
    found: Message = {"role": "system" if role == "developer" else role, "content": _text(message.get("content"), index)}
    if calls := message.get("tool_calls"):
        functions = [(call.get("id", ""), call["function"]) for call in calls]
        found["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": f["name"], "arguments": _arguments(f.get("arguments"))}}
            for id, f in functions
        ]
    if role == "tool":
        found["tool_call_id"] = str(message.get("tool_call_id", ""))
    return found


def _text(content: Any, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
        raise RequestError(f"messages[{index}].content: only texts are served")
    return "".join(part["text"] for part in content)


def _arguments(arguments: Any) -> Any:
    """Read arguments as an object, if they are one: templates write objects out themselves."""
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return read if isinstance(read, dict) else arguments or {}


def _message(answer: Answer, stream: bool = False) -> dict[str, Any]:
    """Return the turn as a message; in a stream each call has its index."""
    message = answer.message
    if answer.calls and stream:
        message["tool_calls"] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
    return {**message, "content": answer.text or (None if answer.calls else "")}


def _usage(answer: Answer) -> dict[str, int]:
    asked, written = answer.prompt_tokens, answer.completion_tokens
    return {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}
