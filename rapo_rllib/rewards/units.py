"""Units at the end of an answer. One may be left out or spelt out; another one is another answer: 5 m is not 5 cm."""

from __future__ import annotations

import re

from rapo_rllib.rewards.words import hedged

# Every spelling of a unit, in lower case and singular; abbreviations that differ by case are not here.
_SPELLINGS = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre kms",
    "inch": "in inches",
    "ft": "foot feet",
    "yd": "yard",
    "mile": "mi",
    "mg": "milligram",
    "g": "gram gm",
    "kg": "kilogram",
    "pound": "lb £",
    "ounce": "oz",
    "ton": "tonne",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "gallon": "gal",
    "s": "second sec",
    "minute": "min",
    "h": "hour hr",
    "degree": "°",
    "radian": "rad",
    "dollar": "$ usd",
    "cent": "¢",
    "euro": "€ eur",
    "mph": "",
    "km/h": "kmh kph",
    "m/s": "",
    "am": "",
    "pm": "",
    "acre": "",
    "unit": "",
}
_KNOWN = {spelling: name for name, others in _SPELLINGS.items() for spelling in (name, *others.split())}
_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound"}
_MONEY = re.compile(r"(-?)\s*([$€£])\s*(.*)", re.DOTALL)
_MATHS = {"pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "inf", "infinity", "or", "and", "mod", "to", "percent"}
_MAX_WORDS = 4
_POWER = r"(?:\s*\^\s*\{?(?P<power>[23])\}?|(?P<sign>[²³]))?"
_TEXT_TAIL = re.compile(r"(?P<value>.*\S)\s*\\text\{(?P<unit>[^{}\d]*)\}" + _POWER, re.DOTALL)
_WORD_TAIL = re.compile(r"(?P<value>.*[\d})])(?P<gap>\s*)(?P<unit>[a-zA-Z](?:[a-zA-Z. /]*[a-zA-Z.])?)" + _POWER, re.DOTALL)
_DEGREES = re.compile(r"(?P<value>.*[^\s^])\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)", re.DOTALL)

Unit = tuple[str, int]  # name and power; 0: no unit, but the word for what is counted
CLOCK = ("am", "pm")


def split_unit(text: str) -> tuple[str, Unit | None]:
    r"""Value and unit of a tidied answer. Of unknown words after a value (``18 red apples``) the last one counts.

    >>> split_unit(r"15\text{ cm}^2"), split_unit("18 red apples")
    (('15', ('cm', 2)), ('18', ('apple', 0)))
    """
    money = _MONEY.fullmatch(text)
    if money is not None:
        value, unit = _without_tail(money[1] + money[3])
        return value, unit or (_CURRENCIES[money[2]], 1)
    return _without_tail(text)


def units_agree(a: Unit | None, b: Unit | None) -> bool:
    """Whether one is missing or both are the same."""
    return a is None or b is None or a == b


def _without_tail(text: str) -> tuple[str, Unit | None]:
    if (match := _DEGREES.fullmatch(text)) is not None:
        return match["value"], ("degree", 1)
    match = _TEXT_TAIL.fullmatch(text)
    if match is not None:
        several = "," in match["unit"]  # "or so", "and a bit": the word is a comma by now
        return (text, None) if several or hedged(match["unit"]) else (match["value"], _known(match["unit"], match))
    match = _WORD_TAIL.fullmatch(text)
    if match is None or not _is_unit(match["unit"], attached=not match["gap"]):
        return text, None
    return match["value"].strip(), _known(match["unit"], match)


def _known(words: str, match: re.Match[str]) -> Unit | None:
    power = {"²": 2, "³": 3}.get(match["sign"] or "") or int(match["power"] or 1)
    found = None
    for word in _words(words):
        if word in _BEFORE:
            power = _BEFORE[word]
        else:
            found = found or _KNOWN.get(word) or _KNOWN.get(word.removesuffix("s"))
    if found is not None:
        return found, power
    return (_words(words)[-1].removesuffix("s"), 0) if _words(words) else None


def _is_unit(words: str, attached: bool) -> bool:
    """``18 apples`` and ``5cm``, but not ``5x``, ``2mn`` or ``3 sin x``, whose letters are variables and functions."""
    listed = _words(words)
    if not 0 < len(listed) <= _MAX_WORDS or _MATHS & set(listed) or hedged(words):
        return False
    known = [word in _KNOWN or word.removesuffix("s") in _KNOWN for word in listed]
    if attached and (len(listed[0]) == 1 or not (known[0] or len(listed[0]) > 3)):
        return False
    return any(known) or all(len(word) > 2 for word in listed)


def _words(text: str) -> list[str]:
    return text.lower().replace(".", "").split()
