"""Reading of tool calls in a model family's own format, by vLLM's tool parsers."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rapo_rllib.protocol.calls import XML, CallReader, ReadCalls, first_mark, has_unread, looks_broken, num_marks
from rapo_rllib.protocol.turns import Schema

logger = logging.getLogger(__name__)

_MOST_MARKS = 64  # of parameters and functions in a turn: parsers take minutes for a turn that repeats them
_REPEATED = re.compile(r"<parameter=|<function=")
_PAIRS = {  # marks that open and close a call, for parsers that take a truncated call for a whole one
    **dict.fromkeys(XML, ("<function=", "</function>")),
    "gemma4": ("<|tool_call>", "<tool_call|>"),
}
_TORN = re.compile(r"</parameter>(?!\s*(?:<parameter=|</function>))")


def vllm_call_reader(parser: str, tokenizer: Any, schemas: Sequence[Schema]) -> CallReader:
    """Make a function that reads the calls of one whole turn, which is given without its thoughts.

    Args:
        parser: name of one of vLLM's tool parsers.
        tokenizer: of the model.
        schemas: of the tools.

    Raises:
        ValueError: vLLM has no parser of that name, or the parser reads no texts, or needs tokens that the tokenizer lacks.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionToolsParam

    made = _parser_class(parser)
    cached = _cached(tokenizer)  # every turn gets a new parser, which asks for the whole vocabulary
    tools = [ChatCompletionToolsParam(**schema) for schema in schemas]
    request = ChatCompletionRequest(model="policy", messages=[], tools=tools or None)

    def found_in(text: str) -> Any:
        one = made(cached, tools)
        if getattr(getattr(one, "_parser_engine", None), "reasoning_start_str", None) == "<think>":
            one.skip_reasoning_parsing = True  # thoughts were removed before: a tag that is left is text
        return one.extract_tool_calls(text, request)

    def read(text: str) -> ReadCalls:
        if len(_REPEATED.findall(text)) > _MOST_MARKS:
            return ReadCalls(text, broken=True)
        try:
            found = found_in(text)
        except Exception as error:  # no text of a policy may end the run, but any of fifty parsers may raise
            logger.debug("the parser %s failed on %r: %s", parser, text, error)
            return ReadCalls(text, broken=True)
        calls = tuple((one.name, one.arguments) for one in (call.function for call in found.tool_calls) if one.name)
        closed = closed_calls(text, calls, parser)
        broken = closed != calls or (has_unread(text, calls) if calls else looks_broken(text, parser))
        return ReadCalls(found.content or "" if closed else text, closed, broken)

    try:
        found_in("")
    except Exception as error:  # each parser raises its own kind
        why = "it does not read texts" if isinstance(error, NotImplementedError) else error
        raise ValueError(
            f"protocol.tool_parser = {parser!r}: does not work with the model's tokenizer: {why}; 'auto' looks for one that "
            "does"
        ) from error
    return read


def closed_calls(text: str, calls: tuple[tuple[str, str], ...], parser: str) -> tuple[tuple[str, str], ...]:
    """Choose the calls that may be run: all but a truncated one; none if it is unclear which call is truncated."""
    mark = first_mark(text)
    if parser not in _PAIRS or mark is None:
        return calls
    text, (opening, closing) = text[mark.start() :], _PAIRS[parser]
    opened, closed = (num_marks(one, text, calls) for one in (opening, closing))
    torn = parser in XML and _TORN.search(text, 0, text.rfind(closing) + len(closing))
    if opened == closed and not torn:
        return calls
    return calls[:closed] if opened == closed + 1 and not torn and text.rfind(opening) > text.rfind(closing) else ()


@lru_cache(maxsize=2)
def _cached(tokenizer: Any) -> Any:
    from vllm.tokenizers.hf import get_cached_tokenizer

    return get_cached_tokenizer(tokenizer)


def _parser_class(parser: str) -> Any:
    from vllm.tool_parsers import ToolParserManager

    # they log a traceback for every turn that is no valid call, which is no fault of the program
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
    logging.getLogger("vllm.parser").setLevel(logging.CRITICAL)
    known = ToolParserManager.list_registered()
    if parser not in known:
        hint = "".join(f"; did you mean {near!r}?" for near in difflib.get_close_matches(parser, known, n=1, cutoff=0.5))
        raise ValueError(
            f"protocol.tool_parser = {parser!r}: is no tool parser of this vLLM{hint}; it has {', '.join(known)}; 'auto' "
            "and 'json' are ours"
        )
    return ToolParserManager.get_tool_parser(parser)
