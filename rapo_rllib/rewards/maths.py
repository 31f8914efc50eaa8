"""Mathematical answers: as text, as letters and words, as numbers with units, and what is left symbolically (math-verify).

(predicted, gold) -> ``latex.tidied`` -> ``worded_answers`` -> ``units`` -> ``number_answers`` -> ``symbolic``
"""

from __future__ import annotations

from rapo_rllib.rewards.latex import one_list, tidied, without_blanks
from rapo_rllib.rewards.number_answers import same_number
from rapo_rllib.rewards.score import Score, golds
from rapo_rllib.rewards.symbolic import TIMEOUT_S, symbolically_equal
from rapo_rllib.rewards.units import split_unit, units_agree
from rapo_rllib.rewards.worded_answers import option, same_words
from rapo_rllib.types import Question

MAX_CHARS = 500  # longer answers are equal to their own text only


def math_score(predicted: str, question: Question, timeout_s: float = TIMEOUT_S) -> Score:
    """1 if the answer equals an accepted one (:func:`math_equal`), else 0."""
    correct = any(math_equal(predicted, gold, timeout_s) for gold in golds(question))
    return Score(float(correct), correct)


def math_equal(predicted: str, gold: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether two answers are mathematically equal; cheap comparisons first.

    >>> math_equal("$1,200.00 dollars", "1200")
    True
    """
    if not predicted.strip() or not gold.strip():
        return False
    if max(len(predicted), len(gold)) > MAX_CHARS:
        return predicted.strip() == gold.strip()
    left, right = tidied(predicted), tidied(gold)
    if without_blanks(left) == without_blanks(right):
        return True
    choice = option(right)
    if choice is not None:
        return _same_choice(left, choice, timeout_s)
    worded = same_words(left, right)
    return _same_value(left, right, timeout_s) if worded is None else worded


def _same_choice(predicted: str, choice: tuple[str, str], timeout_s: float) -> bool:
    """A letter with its content is answered by either, or by both."""
    letter, content = choice
    given = option(predicted)
    if given is not None:
        return given[0] == letter
    return predicted.strip("() ") == letter or math_equal(predicted, content, timeout_s)


def _same_value(predicted: str, gold: str, timeout_s: float) -> bool:
    (left, left_unit), (right, right_unit) = split_unit(predicted), split_unit(gold)
    if not units_agree(left_unit, right_unit):
        return False
    decided = same_number(left, right)
    return symbolically_equal(one_list(left), one_list(right), timeout_s) if decided is None else decided
