"""Make the texts that are embedded: one rule for keys (when a trace is stored) and queries (when one is looked up).

Encoders read a few hundred tokens and silently cut off the right end, so that all long histories of a question get the same
vector. Here the cut is explicit (``step_trace_buffer.key_recipe``). Flow: ``embedder.py`` calls this for every (question,
history) pair.

    goal_and_recent:     question and history, if both fit (the paper); else both ends of the question (games and puzzles have
                         the rules at one end, the case at the other) and the most recent END of the history
    last_characters:     the last 1,300 characters of question and history together (released code)
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rapo_rllib.types import StepTrace

MAX_KEY_TOKENS = 256
MAX_QUESTION_TOKENS = 64
LAST_CHARACTERS = 1300
MAX_CHARACTERS = 16_384  # of a history's end that are tokenized: more than 256 tokens of any language have
RECIPES = {  # name -> description in a fingerprint
    "goal_and_recent": (
        f"question + newline + history; else question[:n/2] + newline + question[-n/2:], n={MAX_QUESTION_TOKENS} or more, + "
        f"newline + history[-{MAX_CHARACTERS} characters:][-rest:]"
    ),
    "last_characters": f"(question + newline + history)[-{LAST_CHARACTERS} characters:][-rest:]",
}


def trace_id(question: str, history: str, text: str, source: str = "") -> str:
    """Return the id of a step trace: 32 hex digits of SHA-256 over its content, so that importing twice stores once."""
    digest = hashlib.sha256()
    for part in (question, history, text, source):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:32]


def id_of(trace: StepTrace) -> str:
    """Compute the id of a step trace from its content."""
    return trace_id(trace.question, trace.history, trace.text, trace.source)


def last_characters(question: str, history: str, tokenizer: PreTrainedTokenizerBase, max_tokens: int = MAX_KEY_TOKENS) -> str:
    """Return the last 1,300 characters of question, newline and history, as in the released code (algorithm.md section 9).

    If they have more than ``max_tokens`` tokens, return the last that fit: the encoder would cut off the most recent step.
    """
    text = (f"{question}\n{history}" if history else question)[-LAST_CHARACTERS:]
    room = max_tokens - tokenizer.num_special_tokens_to_add()
    spans = _token_spans(text, tokenizer)
    while (excess := len(spans) - room) > 0:
        text = text[max(spans[excess][0], 1) :]  # one character may be many tokens, all of which begin at 0
        spans = _token_spans(text, tokenizer)
    return text


def goal_and_recent(
    question: str,
    history: str,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int = MAX_KEY_TOKENS,
    recent_tokens: int | None = None,
) -> str:
    """Make the key of the paper, if it fits: question, newline and history.

    If it does not fit, the question gets 64 tokens, or more if the history leaves more, and the history's end gets the rest. A
    longer question is cut to its beginning and its end, half of the tokens each, with a newline between: all questions of a
    game have the same rules, and the part that tells the questions apart may stand behind the rules.

    A vector is a mean over all tokens, so a key of many steps hides the latest observation. If that observation alone describes
    the situation, set ``recent_tokens``: the key is then the history's end alone.

    Args:
        question: the question's text.
        history: the steps so far, in the text protocol; may be empty.
        tokenizer: a fast tokenizer (it must give character offsets).
        max_tokens: limit of the encoder, special tokens included.
        recent_tokens: tokens of the history's end, in a key without the question; None: question and history.

    Raises:
        ValueError: ``max_tokens`` leaves no room for any history.
    """
    room = _room(tokenizer, max_tokens)
    history = history[-MAX_CHARACTERS:]
    if recent_tokens is not None and history:
        return _with_recent("", history, tokenizer, room, recent_tokens)
    recent = min(len(_token_spans(history, tokenizer)), room)
    goal = _both_ends(question, tokenizer, max(room - recent, MAX_QUESTION_TOKENS))
    return _with_recent(goal, history, tokenizer, room, recent) if history else goal


def _room(tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> int:
    """Return the number of tokens that a key may have beside the encoder's special tokens."""
    room = max_tokens - tokenizer.num_special_tokens_to_add()
    if room <= MAX_QUESTION_TOKENS:
        raise ValueError(
            f"an encoder limit of {max_tokens} tokens has no room for {MAX_QUESTION_TOKENS} question tokens and a history"
        )
    return room


def _both_ends(text: str, tokenizer: PreTrainedTokenizerBase, room: int) -> str:
    """Return ``text`` if it fits into ``room`` tokens, else its first and its last tokens, ``room`` together."""
    spans = _token_spans(text, tokenizer)
    if len(spans) <= room:
        return text
    if room < 2:
        return ""
    first, last = room - room // 2, room // 2
    while True:  # a word that is cut may have more tokens than before
        cut = f"{text[: spans[first - 1][1]]}\n{text[spans[-last][0] :]}"
        excess = len(_token_spans(cut, tokenizer)) - room
        if excess <= 0 or first == 1:
            return cut
        less = (excess + 1) // 2
        first, last = max(first - less, 1), max(last - less, 1)


def _with_recent(head: str, history: str, tokenizer: PreTrainedTokenizerBase, room: int, recent: int) -> str:
    """Join ``head``, a newline and the last ``recent`` tokens of ``history``: at most ``room`` tokens, the head's included.

    Text that begins within a word can tokenize into more pieces than it was cut from, hence the loop.
    """
    spans = _token_spans(history, tokenizer)
    keep = min(len(spans), recent, room - len(_token_spans(head, tokenizer)))
    while True:
        tail = "" if keep <= 0 else history if keep >= len(spans) else history[spans[-keep][0] :]
        text = f"{head}\n{tail}"
        excess = len(_token_spans(text, tokenizer)) - room
        if excess <= 0 or keep <= 0:
            return text
        keep -= excess


def _token_spans(text: str, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, int]]:
    """Return the character span of every token, without special tokens."""
    return tokenizer(text, add_special_tokens=False, truncation=False, return_offsets_mapping=True, verbose=False)[
        "offset_mapping"
    ]
