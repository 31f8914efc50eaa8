r"""Comparison of mathematical answers: as text, as letters and words, by parts, as numbers with units, at last symbolically.

(predicted, gold) -> ``latex`` -> ``worded_answers`` -> `parts` -> ``quantities`` -> ``symbolic`` (math-verify)

Points and intervals have an order, lists and sets have none. ``1 \pm 2`` is the list ``3, -1``. Parts with names (``x=3, y=5``)
are compared by name; with parts that have none, they are compared as the list of their values, in the order of the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rapo_rllib.rewards.latex import BOUND, depths, joined_otherwise, named, one_list, repeated, stated, tidied, without_blanks
from rapo_rllib.rewards.quantities import same_number, split_unit
from rapo_rllib.rewards.score import WRONG, Score, accepted_answers
from rapo_rllib.rewards.symbolic import NoVerdict, is_relation, symbolically_equal
from rapo_rllib.rewards.worded_answers import option, same_words
from rapo_rllib.types import Question

MAX_CHARS = 500  # longer answers are equal to their own text only
_UNION = re.compile(r"\\cup(?![a-zA-Z])")
_NOTHING = ("\\emptyset", "\\varnothing", "∅")
_PLAIN = {"", "{}", "()"}  # brackets that may be left out
_BRACKETED = re.compile(r"\\\{(?P<set>.*)\\\}|(?P<opening>[(\[])(?P<inner>.*)(?P<closing>[)\]])", re.DOTALL)
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
MAX_PARTS = 50  # of an answer; more are compared as text only
_APPROXIMATELY = "\\approx"
# marks of a name that makes an accepted answer an equation, not a named value: x^2+y^2 = 25; a predicted answer may name it so
_EXPRESSION = re.compile(r"[+^/-]|(?<![a-zA-Z\\{])[a-z]{2}(?![a-zA-Z])")
_EQUATION = re.compile(r"(?<![<>!:])=")


class Parts(NamedTuple):
    """Brackets (empty: there are none) and what stands between them."""

    brackets: str
    items: list[str]


def math_score(predicted: str, question: Question) -> Score:
    """Score 1 if the answer is mathematically equal to an accepted one, else 0; with ``failure`` if there was no verdict.

    An answer that repeats a calculation of the question earns nothing.

    >>> math_score("$1,200.00 dollars", Question("id", "What does it cost?", "1200")).correct
    True
    """
    failure = ""
    for gold in accepted_answers(question):
        try:
            if _equal(predicted, gold):
                return WRONG if repeated(tidied(predicted), tidied(gold), tidied(question.text)) else Score(1.0, True)
        except NoVerdict:
            failure = "math/timeout"
    return Score(0.0, False, failure=failure)


def _equal(predicted: str, gold: str) -> bool:
    """Return whether two answers agree, as they are or by the value that ``predicted`` states; cheap comparisons first."""
    if not predicted.strip() or not gold.strip():
        return False
    if max(len(predicted), len(gold)) > MAX_CHARS:
        return predicted.strip() == gold.strip()
    left, right = tidied(predicted), tidied(gold)
    value = stated(left)
    if not is_relation(right):  # the gold answer has no name: the value alone is compared
        value = named(value)[1]
    return _same(left, right) or (value != left and _same(value, right))


def _same(left: str, right: str) -> bool:
    if without_blanks(left) == without_blanks(right):
        return True
    choice = option(right)
    if choice is not None:  # a letter with its content: the answer may give either, or both
        letter, content = choice
        given, said = option(left) or (letter, left)
        return given == letter and (left.strip("() ") == letter or _same(said, content))
    if joined_otherwise(left, right):
        return False
    worded = same_words(left, right)
    return _same_item(one_list(left), one_list(right)) if worded is None else worded


def _same_item(predicted: str, gold: str) -> bool:
    """Return whether two tidied answers, or parts of answers, agree in name and value."""
    predicted, gold = predicted.strip(), gold.strip()
    if without_blanks(predicted) == without_blanks(gold):
        return True
    if gold.startswith(_APPROXIMATELY):
        return _same_item(predicted.removeprefix(_APPROXIMATELY), gold.removeprefix(_APPROXIMATELY))
    (left_name, left), (right_name, right) = named(predicted), named(gold)
    if right_name is not None and _EXPRESSION.search(right_name):
        right_name, right = None, gold
    if left_name is not None and right_name is not None:
        return left_name == right_name and _same_value(left, right)
    if left_name is not None and is_relation(gold):
        left = predicted
    if right_name is not None and _EQUATION.search(predicted):
        return symbolically_equal(predicted, gold)
    return _same_value(left, right)


def _same_value(predicted: str, gold: str) -> bool:
    left, right = parts(predicted), parts(gold)
    if _UNION.search(gold):
        return _matched(_UNION.split(predicted) if _UNION.search(predicted) else left.items, _UNION.split(gold))
    single = not right.brackets and len(right.items) == 1
    if len(left.items) == len(right.items) and not single:
        return _same_parts(left, right)
    # an inequality may stand for an interval
    if not (single and len(left.items) == 1) and not BOUND.search(gold if single else predicted):
        return False
    (value, left_unit), (wanted, right_unit) = split_unit(predicted), split_unit(gold)
    if left_unit is not None and right_unit is not None and left_unit != right_unit:
        return False
    decided = same_number(value, wanted)
    return symbolically_equal(value, wanted) if decided is None else decided


def _same_parts(left: Parts, right: Parts) -> bool:
    # brackets may be left out, but those of an interval say which ends belong to it
    brackets = {left.brackets, right.brackets}
    if (len(brackets) > 1 and not ("" in brackets and brackets <= _PLAIN)) or len(right.items) > MAX_PARTS:
        return False
    given, wanted = ([named(item) for item in side.items] for side in (left, right))
    given_names, wanted_names = _distinct(given), _distinct(wanted)
    bases, meant = {name.partition("_")[0] for name in given_names}, {name for name, _ in wanted}
    if len(bases) == 1 and meant <= {None, *bases}:  # x_1=3, x_2=4: two values of x
        return _matched([value for _, value in given], [value for _, value in wanted])
    if given_names and meant not in ({None}, set(given_names)):
        return False  # x=1, y=-3: not two values of x
    if wanted_names and any(name is not None for name, _ in given):
        found = dict(given)
        return set(given_names) == set(wanted_names) and all(_same_item(found[name], value) for name, value in wanted)
    if given_names:
        given = sorted(given, key=lambda item: item[0] or "")
    if given_names or wanted_names or not brackets <= {"", "{}"}:
        return all(_same_item(a, b) for (_, a), (_, b) in zip(given, wanted, strict=True))
    return _matched(left.items, right.items)


def _matched(given: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether the items of both agree in some order."""
    if len(given) != len(wanted) or len(given) > MAX_PARTS:
        return False
    left = list(given)
    for gold in wanted:
        found = next((item for item in left if _same_item(item, gold)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _distinct(items: Sequence[tuple[str | None, str]]) -> list[str]:
    """Return the names of several items if all have a name and no two the same; else an empty list."""
    names = [name for name, _ in items if name is not None]
    return names if len(set(names)) == len(items) > 1 else []


def parts(text: str) -> Parts:
    r"""Split a tidied answer into its parts; one value is one part without brackets.

    >>> parts("(1, 2]"), parts(r"1 \pm 2").items
    (Parts(brackets='(]', items=['1', '2']), ['1 + 2', '1 - 2'])
    """
    text = text.strip().replace("\\langle", "(").replace("\\rangle", ")")
    if text in _NOTHING:
        return Parts("{}", [])
    name, value = named(text)
    if name is not None and name.startswith("("):
        names, values = list(_split(name[1:-1], True)), parts(value).items
        if len(names) == len(values):
            return Parts("", [f"{n} = {v}" for n, v in zip(names, values, strict=True)])
    match = _BRACKETED.fullmatch(text)
    if match is not None and min(depths(match["inner"] or match["set"] or ""), default=0) >= 0:
        items = [item for item in _split(match["inner"] or match["set"] or "", True) if item]
        if match["inner"] is None:
            return Parts("{}", _signed(items))
        if len(items) > 1:  # both signs of an interval or a point belong together: they are not written out
            return Parts(match["opening"] + match["closing"], items)
    return Parts("", _signed(_split(text, False)))


def _signed(items: Iterable[str]) -> list[str]:
    r"""Write out both signs of every ``\pm``."""
    return [
        _PLUS_MINUS.sub(upper, item).replace("\\mp", lower)
        for item in items
        for upper, lower in (("+-", "-+") if _PLUS_MINUS.search(item) else ((" ", "\\mp"),))
    ]


def _split(text: str, inside: bool) -> Iterator[str]:
    """Split at commas and semicolons outside brackets. Unless the text is from ``inside`` brackets, 1,080 is one number."""
    begin, numbers = 0, [] if inside else [match.span() for match in _THOUSANDS.finditer(text)]
    for index, depth in enumerate(depths(text)):
        if depth == 0 and text[index] in ",;" and not any(start < index < end for start, end in numbers):
            yield text[begin:index].strip()
            begin = index + 1
    yield text[begin:].strip()
