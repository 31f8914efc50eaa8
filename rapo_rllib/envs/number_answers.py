"""Answers that are plain numbers: "$1,200", "3/4", "50%", "18 apples"."""

from __future__ import annotations

import re
from fractions import Fraction

_LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}")
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)\s*(?P<whole>\d+(?:\.\d*)?|\.\d+)(?:\s*/\s*(?P<below>\d+))?(?:[eE](?P<power>[+-]?\d{1,3}))?"
    r"\s*(?P<percent>%)?\s*(?P<unit>[a-zA-Z][a-zA-Z .^]*(?:(?<=[a-zA-Z^])\d)?)?"
)
_MAX_UNIT_WORDS = 3
_UNEVALUATED = re.compile(r"[\d)]\s*(?:[-+*/×÷]|\\times|\\cdot|\\div)\s*[\d(]")
_LATEX_COMMAND = re.compile(r"\\[a-zA-Z]+")
_WORD = re.compile(r"[a-zA-Z]{2,}")
_ANY_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?%?")


def same_number(predicted: str, gold: str) -> bool | None:
    """Whether ``predicted`` is the number ``gold``; None if that takes more than arithmetic to say.

    Currency signs, thousands separators and units are ignored. A percentage equals its number and its fraction ("50%" is
    "50" and "0.5"), two percentages must agree. A calculation that was not carried out ("12 + 5" for 17, "8/2" for 4) is not
    the answer; a sentence is, if it holds one number only.
    """
    right = _parsed(gold)
    if right is None:
        return None
    shown = _LATEX_FRACTION.sub(r"\1/\2", predicted)
    if _UNEVALUATED.search(shown if right[0].denominator == 1 else shown.replace("/", "")):
        return False
    left = _parsed(predicted)
    if left is None and _WORD.search(_LATEX_COMMAND.sub(" ", predicted)):
        found = _ANY_NUMBER.findall(predicted)
        left = _parsed(found[0].rstrip(",")) if len(found) == 1 else None
        if left is None:
            return False
    return None if left is None else _agree(left, right)


def _agree(left: tuple[Fraction, bool], right: tuple[Fraction, bool]) -> bool:
    (a, a_percent), (b, b_percent) = left, right
    if a == b:
        return True
    if a_percent == b_percent:
        return False
    return a / 100 == b if a_percent else a == b / 100


def _parsed(text: str) -> tuple[Fraction, bool] | None:
    """Value, and whether it is a percentage; None for anything but one number with an optional unit."""
    match = _NUMBER.fullmatch(_cleaned(text))
    if match is None or len((match["unit"] or "").split()) > _MAX_UNIT_WORDS:
        return None
    value = Fraction(match["whole"]) * Fraction(10) ** int(match["power"] or 0)
    if match["below"]:
        if int(match["below"]) == 0:
            return None
        value /= int(match["below"])
    return (-value if match["sign"] == "-" else value), bool(match["percent"])


def _cleaned(text: str) -> str:
    text = _LATEX_FRACTION.sub(r"\1/\2", text.strip().rstrip("."))
    text = _TEXT.sub(r" \1 ", text)
    for noise in ("\\$", "$", "\\!", "\\,", "\\(", "\\)", "£", "€", "USD"):
        text = text.replace(noise, "")
    text = text.replace("\\%", "%").replace("−", "-").replace("^\\circ", "").replace("°", "")
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text).strip()
