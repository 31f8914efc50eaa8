r"""Find the expressions that may be compared symbolically: those with the letters and kinds of functions of the gold answer.

What is left then is a matter of values, and of sums that are not carried out: ``math_worker.py``.
"""

from __future__ import annotations

import re

# Functions that stand for each other. One that the gold answer has no relative of is a calculation that was not carried out.
_FAMILIES = tuple(
    frozenset(names.split())
    for names in (
        "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth",
        "log ln lg exp",
        "binom dbinom tbinom choose !",
        "sum prod",
        "int iint oint",
        "lim limsup liminf",
        "max min sup inf",
        "gcd lcm",
        "lfloor rfloor lceil rceil",
        "mod bmod pmod equiv",
        "det",
        "| vert lvert rvert",
    )
)
# commands that only write a value
_PLAIN_NAMES = (
    "frac sqrt pi cdot times div le ge ne lt gt in infty cup cap setminus pm mp circ theta alpha beta gamma delta "
    "epsilon lambda mu phi varphi psi omega rho sigma tau Delta Gamma Omega ell mathbb emptyset varnothing { }"
)
_PLAIN = frozenset(_PLAIN_NAMES.split())
_MAX_DEPTH = 8
_COMMAND = re.compile(r"\\([a-zA-Z]+|.)", re.DOTALL)
_RELATION = re.compile(r"(?<![\\])[<>=]|\\(?:le|ge|ne|in|cup|cap|setminus)(?![a-zA-Z])")
_ROW = re.compile(r"[A-Z]{3,}|[A-Z]\d+")  # a name: \angle ABC is not \angle ACB, as the product of three letters would be
_PRODUCT = re.compile(r"\\(?:cdot|times)(?![a-zA-Z])|\*")
_SET = re.compile(r"\s*(?:\(|\[|\\\{).*(?:\)|\]|\\\})\s*", re.DOTALL)


def is_relation(text: str) -> bool:
    """Whether a tidied answer is an equation, an inequality or a union, not an expression."""
    return _RELATION.search(text) is not None


def comparable(predicted: str, gold: str) -> bool:
    r"""Whether ``predicted`` is written as an answer like ``gold`` could be.

    >>> comparable("3 - x", "-x + 3"), comparable("not x", "x"), comparable(r"\phantom{1}x", "x"), comparable(r"\sum x", "x")
    (True, False, False, False)
    """
    if not _balanced(predicted):
        return False
    given, wanted = _functions(predicted), _functions(gold)
    related = frozenset().union(*(family for family in _FAMILIES if family & wanted))
    if not given <= _PLAIN | wanted | related:
        return False
    written = _compact(_PRODUCT.sub("", predicted)).casefold()
    if not all(row.casefold() in written for row in _ROW.findall(_compact(gold))):
        return False
    more = _letters(predicted) - _letters(gold)
    # an interval has no variable, the inequality that stands for it has one
    return not more or (len(more) == 1 and is_relation(predicted) and _SET.fullmatch(gold) is not None)


def _functions(text: str) -> frozenset[str]:
    return frozenset(_COMMAND.findall(text)) | (frozenset("!|") & frozenset(text))


def _compact(text: str) -> str:
    """Without blanks and commands."""
    return re.sub(r"\s", "", _COMMAND.sub(";", text))


def _letters(text: str) -> set[str]:
    return {character.casefold() for character in _COMMAND.sub(" ", text) if character.isalpha()}


def _balanced(text: str) -> bool:
    """Whether all braces are closed, and brackets not too deep: reading them takes twice the time for each."""
    braces = depth = 0
    for character in _COMMAND.sub(" ", text):
        braces += {"{": 1, "}": -1}.get(character, 0)
        depth += (character in "{([") - (character in "})]")
        if braces < 0 or depth > _MAX_DEPTH:
            return False
    return braces == 0
