r"""Answers that are plain numbers: ``1,200``, ``3/4``, ``1\frac{4}{5}``, ``50%``, ``6.72 \times 10^{-5}``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_DECIMAL = r"\d+(?:\.\d*)?|\.\d+"
_PERIOD = r"\\(?:overline|bar)\s*(?:\{\d+\}|\d)|\(\d+\)|\\dot\s*\{?\d\}?(?:\d*\\dot\s*\{?\d\}?)?|(?<=\d)\s*\\ldots"
_SEEN = re.compile(r"(\d*?)(\d+?)\2+")  # the digits that come again before "..."
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:"
    rf"(?:(?P<mixed>\d+)\s*)?\\frac\{{\s*(?P<above>[+-]?\d+)\s*\}}\{{\s*(?P<below>[+-]?\d+)\s*\}}"
    rf"|(?:(?P<mixed2>\d+)\s+)?(?P<above2>\d+)\s*[/:]\s*(?P<below2>[+-]?\d+)"
    rf"|(?P<endless>\d*)\.(?P<fixed>\d*)(?P<period>{_PERIOD})"
    rf"|(?P<decimal>{_DECIMAL})(?:[eE](?P<power>[+-]?\d{{1,3}})|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?\s*(?P<power2>[+-]?\d{{1,3}})\s*\}}?)?"
    rf")\s*(?P<percent>%|percent|\\text\{{\s*percent\s*\}})?",
    re.ASCII,
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?![,\d])")
_MIN_DIGITS = 6  # of a decimal that stands for a value that has none of finite length
_FLOAT_DIGITS = 15  # a floating point number that shows noise is written with so many digits, or more
_SURE_DIGITS = 12  # of them are no noise


@dataclass(frozen=True)
class Number:
    """A number as it was written."""

    value: Fraction
    percent: bool = False
    is_ratio: bool = False  # written as a fraction
    digits: int | None = None  # significant digits of a decimal with a point; None: it has none

    @property
    def unevaluated(self) -> bool:
        """A division that gives a whole number, but was not carried out: 8/2."""
        return self.is_ratio and self.value.denominator == 1


def parsed_number(text: str) -> Number | None:
    """The number that a tidied text is, and nothing else; None if it is none."""
    match = _NUMBER.fullmatch(_without_thousands(text))
    if match is None:
        return None
    sign = -1 if match["sign"] == "-" else 1
    percent = match["percent"] is not None
    if match["decimal"] is not None:
        power = int(match["power"] or match["power2"] or 0)
        digits = len(match["decimal"].replace(".", "").lstrip("0")) if "." in match["decimal"] else None
        return Number(sign * Fraction(match["decimal"]) * Fraction(10) ** power, percent, digits=digits)
    if match["period"] is not None:
        value = _endless(match["endless"], match["fixed"], re.sub(r"\D", "", match["period"]))
        return None if value is None else Number(sign * value, percent)
    below = int(match["below"] or match["below2"])
    whole, above = int(match["mixed"] or match["mixed2"] or 0), int(match["above"] or match["above2"])
    if below == 0 or (whole and not 0 < above < below):  # 1 4/4 is a sum
        return None
    return Number(sign * (whole + Fraction(above, below)), percent, is_ratio=True)


def _endless(whole: str, fixed: str, period: str) -> Fraction | None:
    r"""Return what ``0.1\overline{6}`` and ``0.1666...`` are; None where no digits come again, or only nines."""
    if not period:
        seen = _SEEN.fullmatch(fixed)
        if seen is None:
            return None
        fixed, period = seen.groups()
    if not period.strip("9"):
        return None
    return Fraction(f"{whole or 0}.{fixed or 0}") + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))


def same_number(predicted: str, gold: str) -> bool | None:
    """Whether ``predicted`` is the number ``gold`` (both tidied, without units); None if it takes more than arithmetic to say.

    A percentage equals its number and its fraction ("50%" is "50" and "0.5"); two percentages must agree. Whatever is not
    written as a number ("12 + 5" for 17, "8/2" or "2^2" for 4) is not carried out, and not the answer.
    """
    right = parsed_number(gold)
    if right is None:
        return None
    left = parsed_number(predicted)
    return left is not None and not left.unevaluated and _agree(left, right)


def _agree(left: Number, right: Number) -> bool:
    if _close(left, right.value):
        return True
    if left.percent == right.percent:
        return False
    return _close(left, right.value * 100) if left.percent else _close(left, right.value / 100)


def _close(written: Number, value: Fraction) -> bool:
    """Equal; or a decimal that is rounded or cut.

    That is for values of endless length (0.333333 for 1/3), and for the noise of floating point (0.30000000000000004).
    """
    if written.value == value:
        return True
    if written.digits is None or written.value == 0:
        return False
    missing = abs(value) - abs(written.value) if (value < 0) == (written.value < 0) else abs(value - written.value)
    if written.digits >= _FLOAT_DIGITS:
        return abs(missing) < _unit(written.value, _SURE_DIGITS)
    endless = _without_twos_and_fives(value.denominator) > 1
    unit = _unit(written.value, written.digits)
    return endless and written.digits >= _MIN_DIGITS and -unit / 2 <= missing < unit


def _unit(value: Fraction, digits: int) -> Fraction:
    """Return what one more at the last of so many significant digits makes."""
    return Fraction(10) ** (_magnitude(value) - digits + 1)


def _magnitude(value: Fraction) -> int:
    """Exponent of the first significant digit."""
    exponent = len(str(abs(value.numerator))) - len(str(value.denominator))
    return exponent if abs(value) >= Fraction(10) ** exponent else exponent - 1


def _without_twos_and_fives(number: int) -> int:
    for prime in (2, 5):
        while number % prime == 0:
            number //= prime
    return number


def _without_thousands(text: str) -> str:
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text, count=1)
