"""Tool calls parsed from a turn, and our parser of plain JSON; the other parsers are vLLM's: ``rollout/vllm/tool_calls.py``.

text of a turn -> ReadCalls: its content, and (name, arguments) of each call
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

JSON = "json"
_FENCE = re.compile(r"\A```(?:json)?\s*(.*?)\s*```\Z", re.DOTALL)
_BEGINS_AS_JSON = ("{", "[{", "```json")
_JSON_FORMS, _LIST_FORMS = (JSON, "llama3_json", "llama4_json", "xlam"), ("pythonic", "llama4_pythonic", "olmo3")
_MARK = re.compile(  # marks with which model families begin one call, or several
    r"<[^<>\s/]{0,20}(?:tool|function)[_▁]?calls?[^<>\s]{0,20}>|<function=\w|<\|python_tag\|>|\[TOOL_CALLS\]"
)
_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|/)")  # JSON's for a letter, itself escaped any number of times
XML = ("qwen3_coder", "qwen3_xml", "step3p5", "seed_oss")
_OWN: dict[str, tuple[str, ...]] = {  # marks of parsers; a parser that is not listed has all
    **dict.fromkeys((JSON, "llama3_json", "llama4_json", "pythonic", "llama4_pythonic"), ()),
    **dict.fromkeys(XML, ("<tool_call>", "<function=")),
    **{"hermes": ("<tool_call>",), "mistral": ("[TOOL_CALLS]",), "gemma4": ("<|tool_call>",), "lfm2": ("<|tool_call_start|>",)},
}


@dataclass(frozen=True)
class ReadCalls:
    """The calls that a parser found in a turn."""

    content: str  # text of the turn, without the calls
    calls: tuple[tuple[str, str], ...] = ()  # name, and arguments as JSON
    broken: bool = False  # the turn begins like a call but has none, or one of several could not be read


CallReader = Callable[[str], ReadCalls]
MakeReader = Callable[[str, Any, Sequence[dict[str, Any]]], CallReader]  # (parser's name, tokenizer, schemas) -> reader


def looks_broken(text: str, parser: str) -> bool:
    """Return whether a turn in which no call was found holds the start of one, in the form of ``parser`` or of another family.

    >>> looks_broken("<|tool_call_start|>[weather(city=Rome)]<|tool_call_end|>", "json"), looks_broken("{8}", "hermes")
    (True, False)
    """
    as_json = parser in _JSON_FORMS and text.lstrip().startswith(_BEGINS_AS_JSON)
    as_list = parser in _LIST_FORMS and re.match(r"\s*\[\w+\(", text) is not None
    own = any(mark in text for mark in _OWN[parser]) if parser in _OWN else _MARK.search(text) is not None
    return as_json or as_list or own or _MARK.match(text.lstrip()) is not None


def has_unread(text: str, calls: Sequence[tuple[str, str]]) -> bool:
    """Return whether a turn has more calls than its parser found: many parsers silently skip a call that they cannot read.

    >>> has_unread("<tool_call><function=add>...</tool_call><tool_call>add</tool_call>", [("add", "{}")])
    True
    """
    mark = first_mark(text)
    if mark is None:
        return False
    if num_marks(mark[0], text[mark.start() :], calls) > len(calls):
        return True
    listed = text[mark.end() :].lstrip()
    try:
        value, _ = json.JSONDecoder().raw_decode(listed)
    except (ValueError, RecursionError):
        return mark[0] in ("[TOOL_CALLS]", "<tool_call>") and listed.startswith("[")
    return isinstance(value, list) and len(value) > len(calls)


def first_mark(text: str) -> re.Match[str] | None:
    """Find the mark with which a turn's calls begin; a mark at the beginning of a line is preferred."""
    return re.search(f"^(?:{_MARK.pattern})", text, re.MULTILINE) or _MARK.search(text)


def num_marks(mark: str, text: str, calls: Sequence[tuple[str, str]]) -> int:
    """Count ``mark`` in ``text`` outside the arguments of ``calls``; it may be escaped in either, and counts alike."""
    given = (json.dumps(read_object(one)[0], ensure_ascii=False) for _, one in calls)
    return _unescaped(text).count(mark) - sum(_unescaped(one).count(mark) for one in given)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "/", text)


def read_json(text: str) -> ReadCalls:
    r"""Read a turn that is only JSON: an object with ``name`` and ``arguments`` (or ``parameters``), or a list of such objects.

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
    r"""Read the JSON object in ``text`` (None: there is none), and say why it cannot be a call's arguments (empty: it can).

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
    except UnicodeEncodeError:  # an escape such as \ud800, which neither an embedder's tokenizer nor a tool takes
        return {}, "hold half a character, which is no Unicode"
    return found, ""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is none of its numbers")


def _call(item: Any) -> tuple[str, str] | None:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return None
    arguments = item.get("arguments", item.get("parameters"))
    return None if arguments is None else (item["name"], json.dumps(arguments, ensure_ascii=False))


def expected_form(names: Sequence[str], parser: str, sample: str) -> str:
    """Describe the form of a call to a policy whose call could not be read; ``sample``: a call by the template, or empty."""
    tools = ", ".join(names) or "none"
    if parser == JSON or '"name"' in sample:
        return f'a call is JSON with "name" (one of {tools}) and "arguments" (an object)'
    shown = f"is written like {sample.strip()}" if sample else "is written as the description of the tools says"
    return f"a call {shown}; the tools are {tools}"
