"""Turns in Harmony, the form of gpt-oss: messages in channels, of which one may call a tool.

vLLM's own parser reads tokens of gpt-oss's vocabulary, whose files it loads from the web, and no text.
"""

from __future__ import annotations

import re

from rapo_rllib.protocol.calls import ReadCalls

HARMONY = "harmony"
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


def is_harmony(template: str) -> bool:
    """Return whether a chat template writes it."""
    return "<|channel|>final<|message|>" in template


def read_harmony(text: str) -> ReadCalls:
    r"""Read the messages of a turn, behind its first thought; later thoughts are left out.

    >>> read_harmony('<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}').calls
    (('add', '{"a": 1}'),)
    """
    content, calls, broken = [], [], False
    for message in filter(str.strip, text.split("<|start|>assistant")):
        header, mark, body = message.partition("<|message|>")
        body, recipient = body.removesuffix("<|end|>"), _RECIPIENT.search(header)
        if not mark or "<|channel|>" not in header or "<|message|>" in body:
            broken = True
        elif recipient is not None:
            calls.append((recipient[1], body))
        elif "analysis" not in header:
            content.append(body)
    return ReadCalls("\n".join(content), tuple(calls), broken)
