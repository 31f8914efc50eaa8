r"""Answers that are numbers (``1,200``, ``3/4``, ``1\frac{4}{5}``, ``50%``, ``6.72 \times 10^{-5}``) and their units.

A unit may be left out or spelt out; another one is another answer: 5 m is not 5 cm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rapo_rllib.rewards.latex import hedged
from rapo_rllib.rewards.math_worker import rounded

_PERIOD = r"\\(?:overline|bar)\s*(?:\{\d+\}|\d)|\(\d+\)|\\dot\s*\{?\d\}?(?:\d*\\dot\s*\{?\d\}?)?|(?<=\d)\s*\\ldots"
_SEEN = re.compile(r"(\d*?)(\d+?)\2+")  # the digits that come again before "..."
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:"
    rf"(?:(?P<mixed>\d+)\s*)?\\frac\{{\s*(?P<above>[+-]?\d+)\s*\}}\{{\s*(?P<below>[+-]?\d+)\s*\}}"
    rf"|(?:(?P<mixed2>\d+)\s+)?(?P<above2>\d+)\s*[/:]\s*(?P<below2>[+-]?\d+)"
    rf"|(?P<whole>\d*)\.(?P<fixed>\d*)(?P<period>{_PERIOD})"
    rf"|(?P<decimal>\d+(?:\.\d*)?|\.\d+)"
    rf"(?:[eE](?P<power>[+-]?\d{{1,3}})|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?\s*(?P<power2>[+-]?\d{{1,3}})\s*\}}?)?"
    rf")\s*(?P<percent>%|percent|\\text\{{\s*percent\s*\}})?",
    re.ASCII,
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?![,\d])")

# Every spelling of a unit, in lower case and singular; abbreviations that differ by case are not here.
_SPELLINGS = (
    "mm millimeter millimetre,cm centimeter centimetre,m meter metre,km kilometer kilometre kms,inch in inches,ft foot feet,"
    "yd yard,mile mi,mg milligram,g gram gm,kg kilogram,pound lb £,ounce oz,ton tonne,ml milliliter millilitre,l liter litre,"
    "gallon gal,s second sec,minute min,h hour hr,degree °,radian rad,dollar $ usd,cent ¢,euro € eur,am,pm,acre,unit"
)
_KNOWN = {spelling: unit.split()[0] for unit in _SPELLINGS.split(",") for spelling in unit.split()}
_RATES = {"mph": "mile per h", "kmh": "km per h", "kph": "km per h"}
_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_MONEY = re.compile(r"(-?)\s*([$€£])\s*(.*)", re.DOTALL)
_MATHS = {"pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "inf", "infinity", "or", "and", "mod", "to", "percent"}
_MAX_WORDS = 5
_POWER = r"(?:\s*\^\s*\{?(?P<power>[123])\}?|(?P<sign>[²³]))?"
_TEXT_TAIL = re.compile(r"(?P<value>.*\S)\s*\\text\{(?P<unit>[^{}\d]*)\}" + _POWER, re.DOTALL)
_WORD_TAIL = re.compile(r"(?P<value>.*[\d})%])(?P<gap>\s*)(?P<unit>[a-zA-Z](?:[a-zA-Z. /]*[a-zA-Z.])?)" + _POWER, re.DOTALL)
_DEGREES = re.compile(r"(?P<value>.*[^\s^])\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)", re.DOTALL)
_OF = re.compile(r"^\s*of\s+(?:(?:the|an?|all|his|her|its|their|my|our|your|this|that)\b)?\s*", re.IGNORECASE)
# other ways to write m/s and m/s^2, replaced one after the other
_REWRITTEN = (
    (re.compile(r"\\frac\{\s*\\text\{([^{}]*)\}\s*\}\{\s*\\text\{([^{}]*)\}(\^\{?\d\}?)?\s*\}"), r"\\text{\1/\2}\3"),
    (re.compile(r"\\text\{([^{}]*)\}\s*(?:\\cdot)?\s*(/?)\s*\\text\{"), r"\\text{\1 \2"),
    (re.compile(r"(?<=\d)\s*/\s*\\text\{"), r"\\text{per "),
    (re.compile(r"([a-zA-Z])[ .]+([a-zA-Z]+)(\}?)\s*\^\s*\{?-([123])\}?\Z"), r"\1/\2\3^\4"),
    (re.compile(r"(\\text\{[^{}\d^]*[a-zA-Z])\^?\{?([23])\}?\}\Z"), r"\1}^\2"),
    (re.compile(r"(per \w+) squared(\}?)\Z"), r"\1\2^2"),
)


@dataclass(frozen=True)
class Number:
    """A number and the form in which it was written."""

    value: Fraction
    percent: bool
    is_ratio: bool = False  # written as a fraction
    digits: int = 0  # number of digits of a decimal with a point, without zeros in front
    last: int = 0  # power of ten of the last digit

    def is_near(self, value: Fraction) -> bool:
        """Return whether it is ``value``: exact, rounded, cut (0.333333 for 1/3), or with float noise (0.30000000000000004)."""
        if self.value == value:
            return True
        endless = self.digits >= 15 or pow(10, value.denominator.bit_length(), value.denominator) != 0
        return self.digits > 0 and endless and rounded(self.value, self.digits, self.last, value)


def parsed_number(text: str) -> Number | None:
    """Read a tidied text that is a number and nothing else; None for other texts."""
    match = _NUMBER.fullmatch(_THOUSANDS.sub(lambda match: match[0].replace(",", ""), text, count=1))
    if match is None:
        return None
    sign, percent = -1 if match["sign"] == "-" else 1, match["percent"] is not None
    if match["decimal"] is not None:
        power, (whole, point, places) = int(match["power"] or match["power2"] or 0), match["decimal"].partition(".")
        digits = len((whole + places).lstrip("0")) if point else 0
        return Number(sign * Fraction(match["decimal"]) * Fraction(10) ** power, percent, False, digits, power - len(places))
    if match["period"] is not None:
        value = _endless(match["whole"], match["fixed"], re.sub(r"\D", "", match["period"]))
        return None if value is None else Number(sign * value, percent)
    below = int(match["below"] or match["below2"])
    mixed, above = int(match["mixed"] or match["mixed2"] or 0), int(match["above"] or match["above2"])
    if below == 0 or (mixed and not 0 < above < below):  # 1 4/4 is a sum
        return None
    return Number(sign * (mixed + Fraction(above, below)), percent, is_ratio=True)


def _endless(whole: str, fixed: str, period: str) -> Fraction | None:
    r"""Compute an endless decimal (``0.1\overline{6}``, ``0.1666...``); None if no digits repeat, or only nines do."""
    if not period and (seen := _SEEN.fullmatch(fixed)) is not None:
        fixed, period = seen.groups()
    if not period.strip("9"):
        return None
    return Fraction(f"{whole or 0}.{fixed or 0}") + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))


def same_number(predicted: str, gold: str) -> bool | None:
    """Return whether ``predicted`` is the number ``gold`` (tidied, without units); None if it takes more than arithmetic.

    A percentage equals its number and its fraction ("50%" is "50" and "0.5"); two percentages must agree. An open
    calculation ("12 + 5" for 17, "8/2" or "2^2" for 4) is not carried out, and is not the answer.
    """
    left, right = parsed_number(predicted), parsed_number(gold)
    if right is None:
        return None
    if left is None or (left.is_ratio and left.value.denominator == 1):
        return False
    return left.is_near(right.value) or (
        left.percent != right.percent and left.is_near(right.value * (100 if left.percent else Fraction(1, 100)))
    )


def split_unit(text: str) -> tuple[str, str | None]:
    r"""Split a tidied answer into value and unit. Of unknown words after a value (``18 red apples``) the last one counts.

    >>> split_unit(r"15\text{ cm}^2"), split_unit("18 red apples"), split_unit("60 km per hour")
    (('15', 'cm^2'), ('18', 'apple'), ('60', 'km/h'))
    """
    money = _MONEY.fullmatch(text)
    if money is None:
        return _without_tail(text)
    value, unit = _without_tail(money[1] + re.sub(r"/\s*(?=[a-z])", " per ", money[3]))
    currency = _KNOWN[money[2]]
    return value, currency + unit if unit and unit.startswith("/") else unit or currency


def bare_unit(text: str) -> str | None:
    """Return the unit (``km per hour``) if a tidied text is only a unit, else None; letters that may be variables are none."""
    text = _rewritten(text)
    value, unit = _without_tail(f"1 {text}")
    words = [word for word in _words(re.sub(r"\\text|[{}^\d]", " ", text)) if word not in _BEFORE]
    alone = all(len(part) == 1 and _known(part[0]) for part in _by_per(words))
    return unit if value == "1" and alone and ("per" in words or "text" in text or len(text) > 2) else None


def _rewritten(text: str) -> str:
    for pattern, written in _REWRITTEN:
        text = pattern.sub(written, text)
    return text


def _without_tail(answer: str) -> tuple[str, str | None]:
    text = _rewritten(answer)
    if (match := _DEGREES.fullmatch(text)) is not None:
        return match["value"], "degree"
    if (match := _TEXT_TAIL.fullmatch(text)) is not None:
        # "or so", "and a bit": `one_list` has made a comma of the first word
        is_unit = "," not in match["unit"] and not _hedged(match["unit"])
    else:
        match = _WORD_TAIL.fullmatch(text)
        is_unit = match is not None and _is_unit(match["unit"], attached=not match["gap"])
    if match is None or not is_unit:
        return answer, None
    power = {"²": 2, "³": 3}.get(match["sign"] or "") or int(match["power"] or 1)
    parts = _by_per(_words(match["unit"]))
    return match["value"].strip(), "/".join(_single(part, power if part is parts[-1] else 1) for part in parts) or None


def _single(words: list[str], power: int) -> str:
    """Return the known unit among the words, with its power; else the last word."""
    name = next(filter(None, map(_known, words)), "")
    if not name:
        return words[-1].removesuffix("s") if words else ""
    power = next((_BEFORE[word] for word in words if word in _BEFORE), power)
    return name if power == 1 else f"{name}^{power}"


def _known(word: str) -> str:
    return _KNOWN.get(word) or _KNOWN.get(word.removesuffix("s"), "")


def _by_per(words: list[str]) -> list[list[str]]:
    """Split the words at ``per``, as in a speed or a density."""
    return [part.split() for part in re.split(r"\bper\b", " ".join(words))]


def _hedged(words: str) -> bool:
    """Return whether the words behind a value change it; ``of the cake`` and ``times`` do not."""
    return hedged(_OF.sub("", words)) and words.strip() != "times"


def _is_unit(words: str, attached: bool) -> bool:
    """Accept ``18 apples`` and ``5cm``, but not ``5x``, ``2mn`` or ``3 sin x``, whose letters are variables and functions."""
    listed = _words(words)
    if not 0 < len(listed) <= _MAX_WORDS or _MATHS & set(listed) or _hedged(words):
        return False
    known = [bool(_known(word)) for word in listed]
    if attached and listed != ["m", "per", "s"] and (len(listed[0]) == 1 or not (known[0] or len(listed[0]) > 3)):
        return False
    return any(known) or all(len(word) > 2 for word in listed)


def _words(text: str) -> list[str]:
    plain = _OF.sub("", text).lower().replace(".", "").replace("/", " per ")
    return " ".join(_RATES.get(word, word) for word in plain.split()).split()
