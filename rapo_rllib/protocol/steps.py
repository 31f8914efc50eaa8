"""Reads one generated step, and renders what a tool answered. algorithm.md section 2.

    engine -> text of one step -> parse_step -> ParsedStep -> environment -> observation -> render_observation -> engine

What a model writes is never an error here: broken, nested and quoted tags only mean that less was understood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rapo_rllib.settings import ProtocolSettings

# Reading of the answer in the last step: `env_config.read_answer`, and `rllib evaluate --answers`. tagged: between the
# protocol's tags, with or without a box, as the prompt asks for; boxed: in the last box, with or without tags; any: as the
# model gives it, in tags, a box, behind "The answer is" or "####", or in the last line.
Answers = Literal["tagged", "boxed", "any"]

_BOXED = re.compile(r"\\boxed\s*\{")
_BRACES = re.compile(r"(?P<box>\\{1,2}boxed\s*\{)|\\.|(?P<brace>[{}])", re.DOTALL)
_NAMED = re.compile(
    r"(?:^####[ \t]*|\banswers?\b[^.:=\n]{0,40}?(?:\bis\b|\bare\b|[:=])[\s*:]*)(?=\S)([^\n]+)", re.IGNORECASE | re.MULTILINE
)
_SENTENCE = re.compile(r"(?<=[^\W_]{3})[.!](?=\s)|(?<=[\d$})])[.!](?=\s)")
_VALUE = re.compile(r"\$(?!\d[^$]*\s)([^$\n]+)\$|\\\((.+?)\\\)|(-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?)")
_MAX_WORDS = 3  # most words of a last line that is an answer, not a sentence about one


@dataclass(frozen=True)
class ParsedStep:
    """The parts of one generated step.

    Example: ``<think>Add.</think><python>3 + 5</python>`` gives ``tool_tag="python", tool_input="3 + 5"``.
    """

    tool_tag: str | None = None  # of the call that decides the step
    tool_input: str | None = None  # stripped
    answer: str | None = None  # stripped content of the answer that decides the step
    complete: bool = False  # a complete tool call or answer was found


def parse_step(text: str, settings: ProtocolSettings, tool_tags: Sequence[str]) -> ParsedStep:
    """Read the text of one step, which ends with a closing tool tag, with the answer, or with EOS.

    The call or answer whose closing tag comes last decides. A call or answer begins at the nearest opening tag before its
    closing tag, so that a tag that is only mentioned ("I use <python> now. <python>1 + 1</python>") does no harm.

    >>> parse_step("<python>1 + 1</python>", ProtocolSettings(), ["python"]).tool_input
    '1 + 1'
    """
    found = [(position, tag) for tag in (*tool_tags, settings.answer_tag) if (position := _last_element(text, tag)) is not None]
    if not found:
        return ParsedStep()
    (start, end), tag = max(found, key=lambda item: item[0][1])
    content = text[start:end].strip()
    if tag == settings.answer_tag:
        return ParsedStep(answer=content, complete=True)
    return ParsedStep(tool_tag=tag, tool_input=content, complete=True)


def _last_element(text: str, tag: str) -> tuple[int, int] | None:
    """Find start and end of the content of the last ``<tag>...</tag>``; None if there is none. One pass over the text.

    A closing tag that has no opening tag between it and the closing tag before it closes nothing.
    """
    begin = found = None
    for match in re.finditer(f"<(/?){re.escape(tag)}>", text):
        if not match[1]:
            begin = match.end()
        elif begin is not None:
            found, begin = (begin, match.start()), None
    return found


def boxed_answer(text: str) -> str:
    r"""Return the content of the last ``\boxed{...}`` whose braces balance; the stripped text if there is none.

    >>> boxed_answer("It is \\boxed{\\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    content = last_box(text)
    return text.strip() if content is None else content


def last_box(text: str) -> str | None:
    r"""Return the stripped content of the last ``\boxed{...}`` with balanced braces; None if there is none. One pass.

    Of boxes within boxes the outermost counts, unless it holds nothing but the inner one.

    >>> last_box(r"\boxed{not \boxed{5}}"), last_box(r"\boxed{\boxed{5}}")
    ('not \\boxed{5}', '5')
    """
    opened: list[re.Match[str]] = []  # boxes and braces that are not closed yet
    last: _Box | None = None
    for match in _BRACES.finditer(text):
        if match["box"] or match["brace"] == "{":
            opened.append(match)
        elif match["brace"] == "}" and opened:
            box = opened.pop()
            if box["box"]:
                content = (box.end(), match.start())
                if last is not None and last.start >= box.end() and not _around(text, content, last).strip():
                    content = last.content
                last = _Box(box.start(), match.end(), content)
    return None if last is None else text[slice(*last.content)].strip()


class _Box(NamedTuple):
    start: int
    end: int
    content: tuple[int, int]  # start and end of its content; if it holds only another box, of that box's content


def _around(text: str, content: tuple[int, int], box: _Box) -> str:
    """Return the text around ``box`` in the ``content`` of an outer box."""
    return text[content[0] : box.start] + text[box.end : content[1]]


def format_ok(text: str, settings: ProtocolSettings, *, require_boxed: bool = True) -> bool:
    r"""Return whether a final step ends with its one and only answer, not empty and, if required, with one ``\boxed{...}``."""
    opening, closing = f"<{settings.answer_tag}>", f"</{settings.answer_tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1 or not text.rstrip().endswith(closing):
        return False
    return answer_ok(text.rstrip()[: -len(closing)].partition(opening)[2], require_boxed=require_boxed)


def answer_ok(text: str, *, require_boxed: bool = True) -> bool:
    r"""Return whether an answer is well-formed: not empty and, if required, with one ``\boxed{...}``."""
    if not require_boxed:
        return bool(text.strip())
    return len(_BOXED.findall(text)) == 1 and bool(last_box(text))


def render_observation(text: str, settings: ProtocolSettings) -> str:
    r"""Render a tool's output as it stands in a trajectory: the only place that knows the whitespace around results.

    The protocol's own tags in the output are quoted, so that it cannot end its result, nor answer or think for the policy.

    >>> render_observation("8</result><answer>9</answer>", ProtocolSettings())
    '\n<result>\n8&lt;/result>&lt;answer>9&lt;/answer>\n</result>\n'
    """
    return f"\n<{settings.result_tag}>\n{quoted(text, settings)}\n</{settings.result_tag}>\n"


def said_in(rendered: str, settings: ProtocolSettings) -> str:
    r"""Recover a tool's output from what :func:`render_observation` has rendered.

    >>> said_in("\n<result>\n8&lt;/result>\n</result>\n", ProtocolSettings())
    '8</result>'
    """
    tag = settings.result_tag
    text = rendered.strip().removeprefix(f"<{tag}>").removesuffix(f"</{tag}>").removeprefix("\n").removesuffix("\n")
    return re.sub(f"&lt;(?=/?(?:{'|'.join(map(re.escape, settings.own_tags))})>)", "<", text)


def quoted(text: str, settings: ProtocolSettings) -> str:
    """Quote the protocol's own tags in ``text``.

    >>> quoted("Write <answer>, not <b>.", ProtocolSettings())
    'Write &lt;answer>, not <b>.'
    """
    return re.sub(f"<(?=/?(?:{'|'.join(map(re.escape, settings.own_tags))})>)", "&lt;", text)


def read_answer(tagged: str | None, text: str, settings: ProtocolSettings, answers: Answers, in_words: bool) -> str | None:
    r"""Find the answer in a final step; None if there is none.

    Args:
        tagged: content of the answer tags; None: the step has none.
        text: of the step.
        settings: the tags of thoughts.
        answers: where to look for the answer; tags come first.
        in_words: whether the question asks for words; if not, of a last line that is a sentence the last value is taken.

    >>> read_answer(None, "<think>2 + 3</think>She has 5 left.", ProtocolSettings(), "any", in_words=False)
    '5'
    """
    if answers == "tagged":
        return None if tagged is None else boxed_answer(tagged)
    said = text.rpartition(f"</{settings.think_tag}>")[2] if tagged is None else tagged
    found = last_box(said)
    return found if found is not None or answers == "boxed" else _unboxed(said, in_words)


def _unboxed(said: str, in_words: bool) -> str | None:
    named = _NAMED.findall(said)
    if named:
        return _SENTENCE.split(_bare(named[-1]))[0] or None
    lines = [line for line in said.splitlines() if line.strip("*_`$ \t.")]
    line = _bare(lines[-1]) if lines else ""
    values = [] if in_words or len(line.split()) <= _MAX_WORDS else _VALUE.findall(line)
    return ("".join(values[-1]) if values else line) or None


def _bare(text: str) -> str:
    """Strip the marks of bold text and code, and a full stop."""
    return re.sub(r"\*\*|__|`", "", text).strip().removesuffix(".").strip()
