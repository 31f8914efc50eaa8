"""Check whether a text shows an answer, and find the nearest step traces that do not show an answer of their query.

Milvus has no such filter, so the nearest traces are filtered here, and more are fetched until enough are left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation

from rapo_rllib.types import HistoryQuery, RetrievedTrace
from rapo_rllib.validation import MOST_FOUND

_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")  # commas part thousands, or the items of a list
_WORD = re.compile(r"[^\W_]+")


def shows_answer(text: str, answers: Sequence[str]) -> bool:
    """Return whether the text holds one of the answers: a number with the same value (signs are ignored), or the same words.

    Words are compared without case, marks or spaces; a part of a word or of a number does not count.

    >>> shows_answer("12 + 1,005 = 1,017.0", ["1017"]), shows_answer("It is 10170", ["1017"])
    (True, False)
    >>> shows_answer("<answer>The Eiffel-Tower</answer>", ["Eiffel tower"])
    True
    """
    numbers = words = None
    for answer in answers:
        wanted = _number(answer.strip().lstrip("-+$").rstrip("%"))
        if wanted is not None:
            numbers = {_number(found) for found in _NUMBER.findall(text)} if numbers is None else numbers
            if wanted in numbers:
                return True
        elif parts := _WORD.findall(answer.casefold()):
            words = f" {' '.join(_WORD.findall(text.casefold()))} " if words is None else words
            if f" {' '.join(parts)} " in words:
                return True
    return False


def _number(text: str) -> Decimal | None:
    try:
        found = Decimal(re.sub(r",(?=\d{3}(?!\d))", "", text).strip())
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def nearest_without_answers(
    find: Callable[[Sequence[int], int], list[list[RetrievedTrace]]], queries: Sequence[HistoryQuery], top_k: int
) -> list[list[RetrievedTrace]]:
    """Find for each query the ``top_k`` nearest traces that do not show its answers, nearest first.

    Args:
        find: called with positions of queries and a number; returns that many nearest traces for each of these queries.
        queries: with their answers; for a query without answers nothing is hidden.
        top_k: traces per query; fewer if a search finds no more.
    """
    found: list[list[RetrievedTrace]] = [[] for _ in queries]
    waiting, count = list(range(len(queries))), top_k
    while waiting:
        hits = dict(zip(waiting, find(waiting, count), strict=True))
        for position, nearest in hits.items():
            found[position] = [hit for hit in nearest if not shows_answer(hit.trace.text, queries[position].answers)][:top_k]
        if count == MOST_FOUND:
            break
        waiting = [position for position in waiting if len(found[position]) < top_k and len(hits[position]) == count]
        count = min(MOST_FOUND, 4 * count)
    return found
