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
    "am": "",
    "pm": "",
    "acre": "",
    "unit": "",
}
_RATES = {"mph": "mile per h", "kmh": "km per h", "kph": "km per h"}
_KNOWN = {spelling: name for name, others in _SPELLINGS.items() for spelling in (name, *others.split())}
_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound"}
_MONEY = re.compile(r"(-?)\s*([$€£])\s*(.*)", re.DOTALL)
_MATHS = {"pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "inf", "infinity", "or", "and", "mod", "to", "percent"}
_MAX_WORDS = 5
_POWER = r"(?:\s*\^\s*\{?(?P<power>[123])\}?|(?P<sign>[²³]))?"
_TEXT_TAIL = re.compile(r"(?P<value>.*\S)\s*\\text\{(?P<unit>[^{}\d]*)\}" + _POWER, re.DOTALL)
_WORD_TAIL = re.compile(r"(?P<value>.*[\d})%])(?P<gap>\s*)(?P<unit>[a-zA-Z](?:[a-zA-Z. /]*[a-zA-Z.])?)" + _POWER, re.DOTALL)
_DEGREES = re.compile(r"(?P<value>.*[^\s^])\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)", re.DOTALL)
_OF = re.compile(r"^\s*of\s+(?:(?:the|an?|all|his|her|its|their|my|our|your|this|that)\b)?\s*", re.IGNORECASE)
# other ways to write m/s and m/s^2, one after the other
_REWRITTEN = (
    (re.compile(r"\\frac\{\s*\\text\{([^{}]*)\}\s*\}\{\s*\\text\{([^{}]*)\}(\^\{?\d\}?)?\s*\}"), r"\\text{\1/\2}\3"),
    (re.compile(r"\\text\{([^{}]*)\}\s*(?:\\cdot)?\s*(/?)\s*\\text\{"), r"\\text{\1 \2"),
    (re.compile(r"(?<=\d)\s*/\s*\\text\{"), r"\\text{per "),
    (re.compile(r"([a-zA-Z])[ .]+([a-zA-Z]+)(\}?)\s*\^\s*\{?-([123])\}?\Z"), r"\1/\2\3^\4"),
    (re.compile(r"(\\text\{[^{}\d^]*[a-zA-Z])\^?\{?([23])\}?\}\Z"), r"\1}^\2"),
    (re.compile(r"(per \w+) squared(\}?)\Z"), r"\1\2^2"),
)

Unit = tuple[str, int]  # name and power; 0: no unit, but the word for what is counted


def split_unit(text: str) -> tuple[str, Unit | None]:
    r"""Value and unit of a tidied answer. Of unknown words after a value (``18 red apples``) the last one counts.

    >>> split_unit(r"15\text{ cm}^2"), split_unit("18 red apples")
    (('15', ('cm', 2)), ('18', ('apple', 0)))
    """
    money = _MONEY.fullmatch(text)
    if money is not None:
        value, unit = _without_tail(money[1] + re.sub(r"/\s*(?=[a-z])", " per ", money[3]))
        currency = _CURRENCIES[money[2]]
        return value, (currency + unit[0], 1) if unit is not None and unit[0].startswith("/") else unit or (currency, 1)
    return _without_tail(text)


def bare_unit(text: str) -> Unit | None:
    """The unit that a tidied text is, and nothing else: ``km per hour``; letters that may be variables are none."""
    text = _rewritten(text)
    value, unit = _without_tail(f"1 {text}")
    words = _words(re.sub(r"\\text|[{}^\d]", " ", text))
    alone = all(len(part) == 1 and _known_word(part[0]) for part in _by_per([word for word in words if word not in _BEFORE]))
    plain = "per" in words or "text" in text or len(text) > 2
    return unit if value == "1" and unit is not None and alone and plain else None


def units_agree(a: Unit | None, b: Unit | None) -> bool:
    """Whether one is missing or both are the same."""
    return a is None or b is None or a == b


def _rewritten(text: str) -> str:
    for pattern, written in _REWRITTEN:
        text = pattern.sub(written, text)
    return text


def _without_tail(answer: str) -> tuple[str, Unit | None]:
    text = _rewritten(answer)
    if (match := _DEGREES.fullmatch(text)) is not None:
        return match["value"], ("degree", 1)
    match = _TEXT_TAIL.fullmatch(text)
    if match is not None:
        several = "," in match["unit"]  # "or so", "and a bit": the word is a comma by now
        return (answer, None) if several or _hedged(match["unit"]) else (match["value"], _known(match["unit"], match))
    match = _WORD_TAIL.fullmatch(text)
    if match is None or not _is_unit(match["unit"], attached=not match["gap"]):
        return answer, None
    return match["value"].strip(), _known(match["unit"], match)


def _known(words: str, match: re.Match[str]) -> Unit | None:
    power = {"²": 2, "³": 3}.get(match["sign"] or "") or int(match["power"] or 1)
    listed = _words(words)
    first, *rest = _by_per(listed)
    if not rest:
        return _single(listed, power) if listed else None
    named = [_single(part, power if part is rest[-1] else 1) for part in (first, *rest) if part]
    return "/".join(["" for _ in range(not first)] + [name if size < 2 else f"{name}^{size}" for name, size in named]), 1


def _single(listed: list[str], power: int) -> Unit:
    found = ""
    for word in listed:
        power = _BEFORE.get(word, power)
        found = found or _known_word(word)
    return (found, power) if found else (listed[-1].removesuffix("s"), 0)


def _known_word(word: str) -> str:
    return _KNOWN.get(word) or _KNOWN.get(word.removesuffix("s"), "")


def _by_per(listed: list[str]) -> list[list[str]]:
    """The words above and below: of a speed, a density."""
    parts: list[list[str]] = [[]]
    for word in listed:
        if word == "per":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _hedged(words: str) -> bool:
    """Whether the words behind a value change it; ``of the cake`` and ``times`` do not."""
    return hedged(_OF.sub("", words)) and words.strip() != "times"


def _is_unit(words: str, attached: bool) -> bool:
    """``18 apples`` and ``5cm``, but not ``5x``, ``2mn`` or ``3 sin x``, whose letters are variables and functions."""
    listed = _words(words)
    if not 0 < len(listed) <= _MAX_WORDS or _MATHS & set(listed) or _hedged(words):
        return False
    known = [bool(_known_word(word)) for word in listed]
    if attached and listed != ["m", "per", "s"] and (len(listed[0]) == 1 or not (known[0] or len(listed[0]) > 3)):
        return False
    return any(known) or all(len(word) > 2 for word in listed)


def _words(text: str) -> list[str]:
    plain = _OF.sub("", text).lower().replace(".", "").replace("/", " per ")
    return " ".join(_RATES.get(word, word) for word in plain.split()).split()
