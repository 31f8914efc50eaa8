"""Answers in words: token F1 and exact match, over all accepted answers.

The normalisation is that of SQuAD's and HotpotQA's evaluation, with three departures that leave their scores of plain ASCII
words as they are:

1. Punctuation and accents outside ASCII go too: “Beyoncé” is "beyonce".
2. A point between digits stays: 3.5 is not 35.
3. An answer of which nothing would be left ("The", "A", "?") keeps what it has.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter

from rapo_rllib.rewards.score import Score, accepted_answers
from rapo_rllib.types import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ACCENTS = re.compile("[\u0300-\u036f]")
_WHOLE_ANSWERS = {"yes", "no", "noanswer"}


def qa_score(predicted: str, question: Question) -> Score:
    """Highest token F1 over the accepted answers; correct if one of them matches exactly."""
    return Score(
        max(token_f1(predicted, gold) for gold in accepted_answers(question)), qa_em_score(predicted, question).correct
    )


def qa_em_score(predicted: str, question: Question) -> Score:
    """1 if the normalised answer is one of the accepted ones, else 0."""
    correct = normalized(predicted) in {normalized(gold) for gold in accepted_answers(question)} - {""}
    return Score(float(correct), correct)


def normalized(text: str) -> str:
    """Lower case, without punctuation, articles and repeated blanks.

    >>> normalized("The  Beatles' 3.5 U.S. hits!")
    'beatles 3.5 us hits'
    """
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.lower()))
    words = " ".join("".join(c for i, c in enumerate(plain) if not _dropped(plain, i)).split())
    return " ".join(_ARTICLES.sub(" ", words).split()) or words or " ".join(plain.split())


def _dropped(text: str, index: int) -> bool:
    """Whether a character is punctuation, other than a decimal point."""
    character = text[index]
    if character == "." and text[index - 1 : index].isdigit() and text[index + 1 : index + 2].isdigit():
        return False
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def token_f1(predicted: str, gold: str) -> float:
    """``2 P R / (P + R)`` of the normalised words; "yes" and "no" count only as a whole answer."""
    a, b = normalized(predicted), normalized(gold)
    if {a, b} & _WHOLE_ANSWERS and a != b:
        return 0.0
    words, wanted = a.split(), b.split()
    common = sum((Counter(words) & Counter(wanted)).values())
    return 2 * common / (len(words) + len(wanted)) if common else 0.0
