"""Mathematical answers: as text, as letters and words, by their parts, as numbers with units, and at last symbolically.

(predicted, gold) -> ``latex`` -> ``worded_answers`` -> ``parts`` -> ``quantities`` -> ``symbolic`` (math-verify)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rapo_rllib.rewards.latex import joined_otherwise, named, one_list, repeated, stated, tidied, without_blanks
from rapo_rllib.rewards.parts import same_parts
from rapo_rllib.rewards.quantities import same_number, split_unit
from rapo_rllib.rewards.score import WRONG, Score, accepted_answers
from rapo_rllib.rewards.symbolic import TIMEOUT_S, NoVerdict, is_relation, symbolically_equal
from rapo_rllib.rewards.worded_answers import option, same_moment, same_words
from rapo_rllib.types import Question

MAX_CHARS = 500  # longer answers are equal to their own text only
_APPROXIMATELY = "\\approx"
# what an accepted equation may be about: x^2+y^2 = 25 is no value with a name, as it may be in an answer to "What is x^2+y^2?"
_EXPRESSION = re.compile(r"[+^/-]|(?<![a-zA-Z\\{])[a-z]{2}(?![a-zA-Z])")
_EQUATION = re.compile(r"(?<![<>!:])=")


def math_score(predicted: str, question: Question, timeout_s: float = TIMEOUT_S) -> Score:
    """1 if the answer equals an accepted one (:func:`math_equal`), else 0; with a failure where that was not found out.

    An answer that repeats a calculation of the question earns nothing.
    """
    failure = ""
    for gold in accepted_answers(question):
        try:
            if _equal(predicted, gold, timeout_s):
                return WRONG if repeated(tidied(predicted), tidied(gold), tidied(question.text)) else Score(1.0, True)
        except NoVerdict:
            failure = "math/timeout"
    return Score(0.0, False, failure=failure) if failure else WRONG


def math_equal(predicted: str, gold: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether two answers are mathematically equal; cheap comparisons first. False if that cannot be found out.

    >>> math_equal("$1,200.00 dollars", "1200")
    True
    """
    try:
        return _equal(predicted, gold, timeout_s)
    except NoVerdict:
        return False


def _equal(predicted: str, gold: str, timeout_s: float) -> bool:
    if not predicted.strip() or not gold.strip():
        return False
    if max(len(predicted), len(gold)) > MAX_CHARS:
        return predicted.strip() == gold.strip()
    left, right = tidied(predicted), tidied(gold)
    value = _bare(stated(left), right)
    return _same(left, right, timeout_s) or (value != left and _same(value, right, timeout_s))


def _bare(predicted: str, gold: str) -> str:
    """``predicted`` without its name, where ``gold`` has none."""
    return predicted if is_relation(gold) else named(predicted)[1]


def _same(left: str, right: str, timeout_s: float) -> bool:
    if without_blanks(left) == without_blanks(right):
        return True
    choice = option(right)
    if choice is not None:
        return _same_choice(left, choice, timeout_s)
    if joined_otherwise(left, right):
        return False
    worded = same_words(left, right)
    return _Values(timeout_s).equal(one_list(left), one_list(right)) if worded is None else worded


def _same_choice(predicted: str, choice: tuple[str, str], timeout_s: float) -> bool:
    """A letter with its content is answered by either, or by both."""
    letter, content = choice
    given = option(predicted)
    if given is not None:
        return given[0] == letter and _same(given[1], content, timeout_s)
    return predicted.strip("() ") == letter or _same(predicted, content, timeout_s)


@dataclass(frozen=True)
class _Values:
    """Compares what is no text."""

    timeout_s: float

    def equal(self, predicted: str, gold: str) -> bool:
        """Whether two tidied answers agree, in all their parts."""
        if without_blanks(predicted) == without_blanks(gold):
            return True
        moment = same_moment(predicted, gold)
        if moment is not None:
            return moment
        if gold.startswith(_APPROXIMATELY):
            return self.equal(predicted.removeprefix(_APPROXIMATELY).strip(), gold.removeprefix(_APPROXIMATELY).strip())
        (left_name, left), (right_name, right) = named(predicted), named(gold)
        if right_name is not None and _EXPRESSION.search(right_name):
            right_name, right = None, gold
        if left_name is not None and right_name is not None:
            return left_name == right_name and self._same_value(left, right)
        if left_name is not None and is_relation(gold):
            left = predicted
        if right_name is not None and left_name is None and is_relation(predicted) and _EQUATION.search(predicted):
            return self._same_expression(predicted, gold)
        return self._same_value(left, right)

    def _same_value(self, predicted: str, gold: str) -> bool:
        by_parts = same_parts(predicted, gold, self.equal)
        if by_parts is not None:
            return by_parts
        (left, left_unit), (right, right_unit) = split_unit(predicted), split_unit(gold)
        if left_unit is not None and right_unit is not None and left_unit != right_unit:
            return False
        decided = same_number(left, right)
        return self._same_expression(left, right) if decided is None else decided

    def _same_expression(self, predicted: str, gold: str) -> bool:
        return symbolically_equal(predicted, gold, self.timeout_s)
