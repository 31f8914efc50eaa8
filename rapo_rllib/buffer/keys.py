"""Make the texts that are embedded: one rule for keys (when a trace is stored) and queries (when one is looked up).

Encoders read a few hundred tokens and cut the right end off without a word, which makes all long histories of a question the
same vector. Here the cut is explicit (``step_trace_buffer.key_recipe``). Flow: ``embedder.py`` calls this for every (question,
history) pair.

    question_and_recent: the first tokens of the question, then the most recent END of the history
    last_characters:     the last 1,300 characters of question and history together (released code)
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_KEY_TOKENS = 256
MAX_QUESTION_TOKENS = 64
LAST_CHARACTERS = 1300
RECIPES = {  # name -> what a fingerprint says
    "question_and_recent": f"question[:{MAX_QUESTION_TOKENS}] + newline + history[-rest:]",
    "last_characters": f"(question + newline + history)[-{LAST_CHARACTERS} characters:][-rest:]",
}


def trace_id(question: str, history: str, text: str, source: str = "") -> str:
    """Identity of a step trace: 32 hex digits of SHA-256 over its content, so that importing twice stores once."""
    digest = hashlib.sha256()
    for part in (question, history, text, source):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:32]


def last_characters(question: str, history: str, tokenizer: PreTrainedTokenizerBase, max_tokens: int = MAX_KEY_TOKENS) -> str:
    """The last 1,300 characters of question, newline and history, as the released code embeds them (algorithm.md section 9).

    Where these are more than ``max_tokens`` tokens, the last that fit: left alone, an encoder would drop the most recent step.
    """
    text = (f"{question}\n{history}" if history else question)[-LAST_CHARACTERS:]
    room = max_tokens - tokenizer.num_special_tokens_to_add()
    spans = _token_spans(text, tokenizer)
    while (excess := len(spans) - room) > 0:
        text = text[max(spans[excess][0], 1) :]  # one character may be many tokens, all of which begin at 0
        spans = _token_spans(text, tokenizer)
    return text


def key_text(question: str, history: str, tokenizer: PreTrainedTokenizerBase, max_tokens: int = MAX_KEY_TOKENS) -> str:
    """The text whose embedding stands for ``history`` of ``question``.

    The first 64 tokens of the question, a newline, and as many tokens of the history's end as fit into ``max_tokens`` together
    with the encoder's special tokens. Both parts are substrings of the input. Text that begins within a word can tokenize
    into more pieces than it was cut from, hence the loop: what is returned never exceeds ``max_tokens``, so the encoder
    truncates nothing.

    Args:
        question: the question's text.
        history: the steps so far, in the text protocol; may be empty.
        tokenizer: a fast tokenizer (it must give character offsets).
        max_tokens: limit of the encoder, special tokens included.

    Raises:
        ValueError: ``max_tokens`` leaves no room for any history.
    """
    room = max_tokens - tokenizer.num_special_tokens_to_add()
    if room <= MAX_QUESTION_TOKENS:
        raise ValueError(
            f"an encoder limit of {max_tokens} tokens has no room for {MAX_QUESTION_TOKENS} question tokens and a history"
        )
    offsets = _token_spans(question, tokenizer)
    head = question if len(offsets) <= MAX_QUESTION_TOKENS else question[: offsets[MAX_QUESTION_TOKENS - 1][1]]
    if not history:
        return head
    spans = _token_spans(history, tokenizer)
    keep = min(len(spans), room - min(len(offsets), MAX_QUESTION_TOKENS))
    while True:
        tail = "" if keep <= 0 else history if keep >= len(spans) else history[spans[-keep][0] :]
        text = f"{head}\n{tail}"
        excess = len(_token_spans(text, tokenizer)) - room
        if excess <= 0 or keep <= 0:
            return text
        keep -= excess


def _token_spans(text: str, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, int]]:
    """Character span of every token, without special tokens."""
    return tokenizer(text, add_special_tokens=False, truncation=False, return_offsets_mapping=True, verbose=False)[
        "offset_mapping"
    ]
