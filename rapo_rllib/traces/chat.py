r"""Chat transcripts with tool calls (OpenAI messages), one JSON object a line, rendered into the text protocol.

    {"messages": [...], "id"?, "source"?, "reward"?, "correct"?, "answer"?}

    system     left out: the protocol's own system prompt takes its place
    user       before the first answer of the assistant: the question (the last of them)
    assistant  content -> <think>…</think>; each of ``tool_calls`` -> <NAME>INPUT</NAME>. INPUT is the one text argument of the
               call, or its arguments as JSON where there are none or several.
               Without tool calls: content -> <answer>\boxed{…}</answer>, or <answer>…</answer> if it has a \boxed{} already
    user       later: what the environment said, as a result. In such a dialogue content without calls stays as it is.
    tool       -> \n<result>\n…\n</result>\n, behind its call (pairing.py)

Content that has tags of the protocol already stays as it is. Of several calls in one message each becomes a step of its own, if
it got a result. The reward is ``reward``, else 1 or 0 by ``correct``, else 1; the source ``source``, else ``model``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rapo_rllib.traces.pairing import Segment
from rapo_rllib.traces.recorded import TOOL_NAME, rendered_steps
from rapo_rllib.traces.rows import json_rows, reward_field, storable, text_field, truth_field
from rapo_rllib.types import ExpertTrajectory, Question

SOURCE = "chat"
ROLES = ("system", "developer", "user", "assistant", "tool")
_TAGGED = re.compile(r"<(think|answer)>")


def read_chat(path: Path, dropped: Counter[str]) -> Iterator[ExpertTrajectory]:
    """Yield the trajectories of a file, in its order.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``.
        dropped: counts left-out lines, calls and results by reason.

    Raises:
        ValueError: the file or a line is wrong, naming file, line and field.
    """
    for where, row in json_rows(path):
        messages = _messages(row, where, dropped)
        question, rest = _question(messages)
        reason = _why_not(question, rest)
        steps = () if reason else rendered_steps(_segments(rest, where), dropped)
        if reason or not steps:
            dropped[reason or "no step"] += 1
            continue
        source = row.get("source", row.get("model", SOURCE))
        expert = ExpertTrajectory(
            Question(
                id=text_field(row, "id", where, ""),
                text=question,
                answer=str(row.get("answer", "")),
                source=text_field({"source": source}, "source", where),
            ),
            steps,
            reward_field(row, where, 0.0 if truth_field(row, "correct", where) is False else 1.0),
            source,
        )
        yield storable(expert, where)


def _messages(row: dict[str, Any], where: str, dropped: Counter[str]) -> list[dict[str, Any]]:
    messages = row.get("messages")
    if not isinstance(messages, list):
        raise ValueError(f"{where}: field 'messages' must be a list, got {type(messages).__name__}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ValueError(f"{where}: field 'messages[{index}].role' must be one of {ROLES}, got {str(message)[:80]}")
        message["content"] = _content(message.get("content"), f"{where}: field 'messages[{index}].content'", dropped)
    return messages


def _content(content: Any, where: str, dropped: Counter[str]) -> str:
    """Read the text of a message, whose content is a text, None, or a list of parts; parts that are no text are dropped."""
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [str(part.get("text", "")) for part in content if part.get("type") == "text"]
        if len(texts) < len(content):
            dropped["a part of a message that is no text"] += len(content) - len(texts)
        return "".join(texts)
    if not isinstance(content, str):
        raise ValueError(f"{where} must be a text or a list of parts, got {str(content)[:80]!r}")
    return content


def _question(messages: Sequence[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Find the question, the user's last message before the assistant's first one, and all messages from the latter on."""
    begin = next((index for index, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    asked = [message["content"] for message in messages[:begin] if message["role"] == "user"]
    return (asked[-1].strip() if asked else ""), list(messages[begin:])


def _why_not(question: str, rest: Sequence[dict[str, Any]]) -> str:
    if not question:
        return "no question"
    return "" if rest else "no answer of the assistant"


def _segments(messages: Sequence[dict[str, Any]], where: str) -> list[Segment]:
    """Cut messages into segments of a trace file: thoughts, calls, results, an answer, and words of the environment."""
    dialogue = any(message["role"] == "user" for message in messages)
    segments: list[Segment] = []
    last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
    for number, message in enumerate(messages):
        content = message["content"]
        if message["role"] == "assistant":
            calls = [_call(call, where) | {"message": number} for call in message.get("tool_calls") or []]
            other = "thought" if calls or number < last else "answer"  # what was said before a call may be a message of its own
            segments += _said(message, "move" if dialogue and not calls else other) + calls
        elif message["role"] == "user":
            segments.append({"type": "said", "text": content})
        elif message["role"] == "tool":
            segments.append({"type": "result", "text": content, "id": message.get("tool_call_id")})
    return segments


def _said(message: dict[str, Any], content_is: str) -> list[Segment]:
    thought, content = message.get("reasoning_content"), message["content"].strip()
    segments = [{"type": "think", "text": thought}] if isinstance(thought, str) else []
    if not content:
        return segments
    if content_is == "move" or _TAGGED.search(content):
        return [*segments, {"type": "raw", "text": content}]
    if content_is == "thought":
        return [*segments, {"type": "think", "text": content}]
    answer = (
        {"type": "raw", "text": f"<answer>{content}</answer>"} if r"\boxed" in content else {"type": "answer", "text": content}
    )
    return [*segments, answer]


def _call(call: Any, where: str) -> Segment:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise ValueError(
            f"{where}: field 'tool_calls[].function.name' must be a tool's name (letters, digits, underscores), got "
            f"{str(call)[:80]}"
        )
    return {"type": "call", "tool": name, "text": _input(function.get("arguments", "")), "id": call.get("id")}


def _input(arguments: Any) -> str:
    """Find the text between the tags of a call.

    Example: ``{"code": "print(3 + 5)"}`` gives ``print(3 + 5)``; ``{"a": 3, "b": 5}`` gives itself.
    """
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
    except json.JSONDecodeError:
        return str(arguments)  # no JSON: the input itself
    if isinstance(values, dict) and len(values) == 1 and isinstance(only := next(iter(values.values())), str):
        return only
    return arguments if isinstance(arguments, str) else json.dumps(values, ensure_ascii=False)
