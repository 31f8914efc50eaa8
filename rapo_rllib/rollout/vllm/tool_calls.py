"""Calls as a model family writes them, read by vLLM's own tool parsers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from rapo_rllib.protocol.calls import CallReader, ReadCalls, has_unread, looks_broken, shielded
from rapo_rllib.protocol.turns import Schema


def vllm_call_reader(parser: str, tokenizer: Any, schemas: Sequence[Schema]) -> CallReader:
    """A function that reads the calls of one whole turn.

    Args:
        parser: name of one of vLLM's tool parsers.
        tokenizer: of the model.
        schemas: of the tools.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionToolsParam
    from vllm.tokenizers.hf import get_cached_tokenizer
    from vllm.tool_parsers import ToolParserManager

    # a turn that is no call is no fault of the program: they log a traceback for each
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
    logging.getLogger("vllm.parser").setLevel(logging.CRITICAL)
    made = ToolParserManager.get_tool_parser(parser)
    cached = get_cached_tokenizer(tokenizer)  # a parser of its own for every turn asks for the whole vocabulary
    tools = [ChatCompletionToolsParam(**schema) for schema in schemas]
    request = ChatCompletionRequest(model="policy", messages=[], tools=tools or None)

    def read(text: str) -> ReadCalls:
        found = made(cached, tools).extract_tool_calls(shielded(text) if parser in ("hermes", "xlam") else text, request)
        read_calls = (call.function for call in found.tool_calls if call.function.name)  # one without a name is none
        calls = tuple((call.name, call.arguments) for call in read_calls)
        broken = has_unread(text, parser, len(calls)) if calls else looks_broken(text, parser)
        return ReadCalls(found.content or "" if calls else text, calls, broken)

    return read
