"""Answers in words: token F1 and exact match, over all accepted answers.

``squad`` is the normalisation of SQuAD's and HotpotQA's evaluation, but an answer of which nothing would be left ("The", "A",
"?") is kept. ``signs``, the default, differs in two points, which do not change the scores of plain ASCII words:

1. Punctuation and accents outside ASCII go too: “Beyoncé” is "beyonce".
2. Signs that make another number or name stay: 3.5 is not 35, -5 not 5, 1/2 not 12, C++ not C, A- not A.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable

from rapo_rllib.rewards.score import Score, accepted_answers
from rapo_rllib.types import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ACCENTS = re.compile("[\u0300-\u036f]")
# signs that stay: behind a letter or digit; of a grade or a blood group; before a number; between digits
_SIGN = re.compile(
    r"(?<=\w)[+#]+|(?<=\b[a-z])-(?!\w)|(?<=\b[a-z]{2})-(?!\w)|(?<![\w)])[-<>](?=[-<=.$]*\d)|(?<=\d)[-./:^*=](?=\d)"
)
_LIKE_ASCII = str.maketrans({**dict.fromkeys("−‐‑‒–—﹣", "-"), "×": "*", "∕": "/"})
_WHOLE_ANSWERS = {"yes", "no", "noanswer"}


def qa_score(predicted: str, question: Question, normalization: str = "signs") -> Score:
    """Return the highest token F1 over the accepted answers; correct if one of them matches exactly."""
    f1 = max(token_f1(predicted, gold, normalization) for gold in accepted_answers(question))
    return Score(f1, qa_em_score(predicted, question, normalization).correct)


def qa_em_score(predicted: str, question: Question, normalization: str = "signs") -> Score:
    """Score 1 if the normalised answer is an accepted one, else 0."""
    plain = NORMALIZATIONS[normalization]
    correct = plain(predicted) in {plain(gold) for gold in accepted_answers(question)} - {""}
    return Score(float(correct), correct)


def normalized(text: str) -> str:
    """Lower the case, and take off articles, repeated blanks, and punctuation that is no sign.

    >>> normalized("The  Beatles' 3.5 U.S. hits!"), normalized("-5"), normalized("C++.")
    ('beatles 3.5 us hits', '-5', 'c++')
    """
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.lower().translate(_LIKE_ASCII)))
    kept = {index for match in _SIGN.finditer(plain) for index in range(*match.span())}
    return _without_articles("".join(c for i, c in enumerate(plain) if i in kept or not _is_punctuation(c)), plain)


def squad(text: str) -> str:
    """Normalise as SQuAD's evaluation script does."""
    return _without_articles("".join(c for c in text.lower() if c not in string.punctuation), text.lower())


NORMALIZATIONS: dict[str, Callable[[str], str]] = {"signs": normalized, "squad": squad}


def _without_articles(words: str, whole: str) -> str:
    """Strip articles and repeated blanks from ``words``; if no word would be left, keep articles, or else take ``whole``."""
    return next((found for text in (_ARTICLES.sub(" ", words), words, whole) if (found := " ".join(text.split()))), "")


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def token_f1(predicted: str, gold: str, normalization: str = "signs") -> float:
    """Return ``2 P R / (P + R)`` of the normalised words; "yes" and "no" count only as a whole answer."""
    a, b = map(NORMALIZATIONS[normalization], (predicted, gold))
    if {a, b} & _WHOLE_ANSWERS and a != b:
        return 0.0
    words, wanted = a.split(), b.split()
    common = sum((Counter(words) & Counter(wanted)).values())
    return 2 * common / (len(words) + len(wanted)) if common else 0.0
