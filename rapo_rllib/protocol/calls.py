"""Which tool parser reads a model's calls, and the plain JSON one. The others are vLLM's: ``rollout/vllm/tool_calls.py``.

text of a turn -> ReadCalls: its content, and (name, arguments) of each call
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

JSON = "json"
# parser -> what a call begins with, and whether that must be a token of its own
MARKS = {
    "hermes": ("<tool_call>", False),
    "xlam": ("<tool_call>", False),
    "llama3_json": ("<|python_tag|>", True),
    "mistral": ("[TOOL_CALLS]", True),
    JSON: ("", False),
}
_FENCE = re.compile(r"\A```(?:json)?\s*(.*?)\s*```\Z", re.DOTALL)
_BEGINS_AS_JSON = ("{", "[{", "```json")


@dataclass(frozen=True)
class ReadCalls:
    """The calls that a parser found in a turn."""

    content: str  # without the calls
    calls: tuple[tuple[str, str], ...] = ()  # name, and arguments as JSON
    broken: bool = False  # it begins like a call, and is none; or one of several is none


CallReader = Callable[[str], ReadCalls]


def parser_of(asked: str, tokenizer: Any) -> str:
    """The parser's name, ``auto`` resolved by the chat template.

    Raises:
        ValueError: the template names no form that is known, or the tokenizer lacks the token that the parser looks for.
    """
    name = _from_template(str(tokenizer.chat_template)) if asked == "auto" else asked
    mark, is_token = MARKS[name]
    if is_token and mark not in tokenizer.get_vocab():
        fitting = ", ".join(repr(other) for other, (_, needs_token) in MARKS.items() if not needs_token)
        raise ValueError(
            f"protocol.tool_parser = {asked!r}: the model's tokenizer has no token {mark}, by which {name!r} finds calls; use "
            f"one of {fitting}"
        )
    return name


def _from_template(template: str) -> str:
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<function=" not in template and "<tool_call>" in template:
        return "xlam" if re.search(r"<tool_call>\s*(?:\\n)?\s*\[", template) else "hermes"
    if "ipython" in template or "<|python_tag|>" in template:
        return "llama3_json"
    if "<tool_call>" not in template and re.search(r'\\?"name\\?"', template) and re.search("arguments|parameters", template):
        return JSON
    raise ValueError(
        f"protocol.tool_parser = 'auto': the model's chat template does not say how it writes calls; name one of "
        f"{', '.join(MARKS)}"
    )


def looks_broken(text: str, parser: str) -> bool:
    """Whether a turn without a call begins like one."""
    mark, _ = MARKS[parser]
    as_json = parser in (JSON, "llama3_json", "xlam") and text.lstrip().startswith(_BEGINS_AS_JSON)
    return as_json or bool(mark and mark in text)


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def shielded(text: str) -> str:
    r"""``text`` with the end of a call that stands inside its own JSON escaped, as JSON allows: parsers cut calls there.

    >>> print(shielded('<tool_call>{"name": "say", "arguments": {"text": "</tool_call>"}}</tool_call>'))
    <tool_call>{"name": "say", "arguments": {"text": "<\/tool_call>"}}</tool_call>
    """
    decoder, pieces, position = json.JSONDecoder(), [], 0
    while (found := text.find(_OPEN, position)) >= 0:
        begin = found + len(_OPEN)
        begin += len(text[begin:]) - len(text[begin:].lstrip())
        try:
            _, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            end = begin
        pieces += [text[position:begin], text[begin:end].replace(_CLOSE, _CLOSE.replace("/", "\\/"))]
        position = end
    return "".join(pieces) + text[position:]


def has_unread(text: str, parser: str, num_read: int) -> bool:
    """Whether a turn lists more calls than its parser found: those of lists leave out what is no call, without a word.

    >>> has_unread('[TOOL_CALLS] [{"name": "add", "arguments": {}}, {"nam": "add"}]', "mistral", 1)
    True
    """
    mark, _ = MARKS[parser]
    if parser not in ("mistral", "xlam") or mark not in text:
        return False
    listed = text.partition(mark)[2].lstrip()
    try:
        value, _ = json.JSONDecoder().raw_decode(listed)
    except (ValueError, RecursionError):
        return listed.startswith("[")
    return isinstance(value, list) and len(value) > num_read


def read_json(text: str) -> ReadCalls:
    r"""Calls of a turn that is nothing but JSON: objects with ``name`` and ``arguments`` (or ``parameters``), one or a list.

    >>> read_json('{"name": "add", "arguments": {"a": 1}}').calls
    (('add', '{"a": 1}'),)
    """
    fenced = _FENCE.match(text.strip())
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return ReadCalls(text, broken=looks_broken(text, JSON))
    found = [_call(item) for item in (value if isinstance(value, list) else [value])]
    calls = tuple(call for call in found if call is not None)
    if calls and len(calls) == len(found):
        return ReadCalls("", calls)
    return ReadCalls(text, broken=looks_broken(text, JSON))


def read_object(text: str) -> tuple[dict[str, Any] | None, str]:
    r"""The JSON object in ``text``, None where it holds none, and what is wrong with it as the arguments of a call.

    >>> read_object('{"a": 1}'), read_object("[1]")
    (({'a': 1}, ''), (None, 'must be a JSON object'))
    """
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return None, f"are no JSON: {error}"
    if not isinstance(found, dict):
        return None, "must be a JSON object"
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # an escape such as \ud800, which no tokenizer of keys and no tool takes
        return {}, "hold half a character, which is no Unicode"
    return found, ""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is none of its numbers")


def _call(item: Any) -> tuple[str, str] | None:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return None
    arguments = item.get("arguments", item.get("parameters"))
    return None if arguments is None else (item["name"], json.dumps(arguments, ensure_ascii=False))


def expected_form(names: Sequence[str]) -> str:
    """An example of a call, for a policy that wrote none."""
    return f'a call is JSON with "name" (one of {", ".join(names) or "none"}) and "arguments" (an object)'
