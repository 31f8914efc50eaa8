"""Answer against ground truth: maths by value, then by symbolic equality; questions by token F1 or exact match.

Flow: boxed answer and Question -> scorer -> Score -> reward terms (``tool_env.py``).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rapo_rllib.envs.math_equality import symbolically_equal
from rapo_rllib.envs.number_answers import same_number
from rapo_rllib.types import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans(string.punctuation, " " * len(string.punctuation))
_LATEX_NOISE = re.compile(r"\\(?:left|right|,|;|!|:|quad|qquad)(?![a-zA-Z])|\\text\{\s*\}|[\s$]+")


@dataclass(frozen=True)
class Score:
    """How good an answer is (``value`` in [0, 1]), and whether it counts as correct."""

    value: float
    correct: bool


Scorer = Callable[[str, Question], Score]


def golds(question: Question) -> tuple[str, ...]:
    """All accepted answers."""
    return (question.answer, *question.aliases)


def math_score(predicted: str, question: Question) -> Score:
    """1 if the answer equals an accepted one as text, as a number, or symbolically (math-verify); else 0."""
    correct = any(math_equal(predicted, gold) for gold in golds(question))
    return Score(float(correct), correct)


def math_equal(predicted: str, gold: str) -> bool:
    """Whether two answers are mathematically equal; cheap comparisons first.

    >>> math_equal("$1,200.00 dollars", "1200")
    True
    """
    if not predicted.strip() or not gold.strip():
        return False
    if _LATEX_NOISE.sub("", predicted) == _LATEX_NOISE.sub("", gold):
        return True
    decided = same_number(predicted, gold)
    return symbolically_equal(predicted, gold) if decided is None else decided


def qa_score(predicted: str, question: Question) -> Score:
    """Highest token F1 over the accepted answers; correct if one of them matches exactly."""
    return Score(max(token_f1(predicted, gold) for gold in golds(question)), qa_em_score(predicted, question).correct)


def qa_em_score(predicted: str, question: Question) -> Score:
    """1 if the normalised answer is one of the accepted ones, else 0."""
    correct = normalized(predicted) in {normalized(gold) for gold in golds(question)} - {""}
    return Score(float(correct), correct)


def normalized(text: str) -> str:
    """Lower case, without punctuation, articles and repeated blanks (as SQuAD's evaluation does).

    >>> normalized("The  Beatles!")
    'beatles'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(predicted: str, gold: str) -> float:
    """``2 P R / (P + R)`` of the normalised words; "yes" and "no" count only as a whole answer."""
    a, b = normalized(predicted), normalized(gold)
    if {a, b} & {"yes", "no", "noanswer"} and a != b:
        return 0.0
    words, wanted = a.split(), b.split()
    common = sum((Counter(words) & Counter(wanted)).values())
    return 2 * common / (len(words) + len(wanted)) if common else 0.0


SCORERS: dict[str, Scorer] = {"math": math_score, "qa": qa_score, "qa_em": qa_em_score}


def scorer_for(name: str, question: Question) -> Scorer:
    """The scorer of that name; ``auto`` is ``qa`` for a question whose source ends in ``/qa``, else ``math``."""
    if name == "auto":
        name = "qa" if question.source.endswith("/qa") else "math"
    return SCORERS[name]
