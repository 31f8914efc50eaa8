r"""Answers that no arithmetic decides: words, names (``\angle ABC``), choices (``(C)``), digits (``52_8``), dates, times.

``May 6, 2024`` is ``2024-05-06``, ``\text{6:00 PM}`` is ``18:00``.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import permutations
from typing import NamedTuple

from rapo_rllib.rewards.latex import hedged, without_blanks
from rapo_rllib.rewards.quantities import bare_unit

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_LETTER = re.compile(r"(?:\\text\{\s*)?\(?\s*(?:\\text\{\s*)?([A-Ja-j])(?:\s*\})?\s*\)?(?:\s*\})?")
_ALONE = re.compile(r"\\text\{\s*\(?\s*([A-J])\s*\)?\s*\}|\(\s*(?:\\text\{)?\s*([A-J])\s*\}?\s*\)")
_OPTION = re.compile(r"\(?(?:\\text\{\s*)?\(?([A-J])\s*\)?\s*\}?\s*(?:[.:)]|(?<=[)}]))\s*([^\s)}].*)", re.DOTALL)
_OTHER = re.compile(r"(?<![A-Za-z\\])[A-Ja-j]\s*[.)?]|\(\s*[A-J]|\b[A-J]\b|^\s*(?:[,;/&]|\\text\{\s*(?:and|or))")
_LETTERS_APART = re.compile(r"[\s,]|\\text|[{}()]|\band\b")
_SEVERAL = re.compile(r"[A-J]{2,}")
_POINT = re.compile(r"[(\[][^()\[\]]*,[^()\[\]]*[)\]]")
_NAME = re.compile(
    r"(?:\\?(?:text\{ *)?(angle|triangle|square|quadrilateral|overline|segment|overleftrightarrow|line)\b"
    r"[ }]*)?(?:\{|\\text\{)? ?([A-Z]{2,})\}?"
)
_FIGURES = {"quadrilateral": "square", "segment": "overline", "line": "overleftrightarrow"}
_ROW = 3  # fewest capitals in a row that are a name or a word, not a product
_BASED = re.compile(r"(-?[0-9A-Za-z]+)_\{?(?:\\text\{)?\s*(\w+)\s*\}?\}?")
_WORDS = re.compile(r"[^\W\d_]{2}[^\d_\\^{}=+*/<>]*")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"}
_MIN_WORD = 4  # letters without blanks: shorter ones may be a product of variables

_TIME = re.compile(r"(\d{1,2})(?::(\d\d)(?::(\d\d))?)?(?:\s*(o'clock|noon|midnight|[ap](?=\.?m)\.?m\.?))?")
_DATES = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y"),
    *(f"{day}{year}" for day in ("%d %B", "%B %d", "%d %b", "%b %d") for year in ("", " %Y")),
    *("%B %Y", "%b %Y"),
)
_IN_FIGURES = re.compile(r"(\d\d?)[/-](\d\d?)[/-](\d{4})")
_BESIDE = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b|\b(?:of|the)\b|,|\.(?=\s|$)|^[a-z]+day\b")
_YEARLESS = 1904  # a leap year, so that February 29 is a day of it


def option(text: str) -> tuple[str, str] | None:
    """Return the letter and content of a multiple-choice answer that has both. Example: ``C. 7`` gives ``("C", "7")``.

    Content that names another choice, or takes this choice back, does not count.
    """
    match = _OPTION.fullmatch(text)
    if match is None or _OTHER.search(match[2]) or hedged(match[2]):
        return None
    return match[1], match[2]


def same_words(predicted: str, gold: str) -> bool | None:
    """Return whether two answers are the same unit, date or time, letters, name, digits or words; None if ``gold`` is none."""
    for compare in (_same_unit, same_moment, _same_letter, _same_letters, _same_name, _same_digits, _same_text):
        found = compare(predicted, gold)
        if found is not None:
            return found
    return None


def _same_letter(predicted: str, gold: str) -> bool | None:
    wanted, (chosen, _) = _ALONE.fullmatch(gold), option(predicted) or ("", "")
    if wanted is None:
        return True if chosen and gold.strip() == chosen else None  # a bare letter may also be a variable
    letter = _LETTER.fullmatch(predicted)
    given = letter[1].upper() if letter is not None else chosen
    return given == (wanted[1] or wanted[2])


def _same_letters(predicted: str, gold: str) -> bool | None:
    """Compare several choices, which ``gold`` names in alphabetical order; letters without signs between must be in order."""
    wanted = _LETTERS_APART.sub("", gold)
    if _SEVERAL.fullmatch(wanted) is None or list(wanted) != sorted(set(wanted)) or _POINT.search(gold):
        return None
    given = _LETTERS_APART.sub("", predicted)
    if _POINT.search(predicted) or given in without_blanks(predicted):
        return given == wanted
    return sorted(given) == list(wanted)


def _same_name(predicted: str, gold: str) -> bool | None:
    """Compare rows of capitals: words, or names of figures, whose points may be in any order that means the same figure."""
    wanted, given = _NAME.fullmatch(gold), _NAME.fullmatch(predicted)
    if wanted is None or (wanted[1] is None and len(wanted[2]) < _ROW):
        return None
    if given is None:
        letters = _LETTERS_APART.sub("", predicted)
        return letters.casefold() == wanted[2].casefold()
    figure, named = (_FIGURES.get(match[1], match[1]) for match in (wanted, given))
    return named in (None, figure) and given[2] in _orders(figure, wanted[2])


def _orders(figure: str | None, points: str) -> set[str]:
    """List the names of a figure: a triangle's points in any order, a square's around it, an angle's or a line's both ways."""
    if figure == "triangle":
        return set(map("".join, permutations(points)))
    around = range(len(points)) if figure == "square" else (0,)
    turned = {points[i:] + points[:i] for i in around}
    return turned if figure is None else turned | {name[::-1] for name in turned}


def _same_unit(predicted: str, gold: str) -> bool | None:
    """Compare units, e.g. ``km/h`` and ``km per hour``; None if they are not the same: they may not be meant as units."""
    unit = bare_unit(gold)
    return True if unit is not None and bare_unit(predicted) == unit else None


def _same_digits(predicted: str, gold: str) -> bool | None:
    """Compare digits in a base. ``predicted`` may leave out the base, which the question names, but not name another one."""
    wanted = _BASED.fullmatch(without_blanks(gold))
    if wanted is None or not (wanted[1].lstrip("-")[0].isdigit() or (wanted[1].isupper() and wanted[2].isdigit())):
        return None
    given = _BASED.fullmatch(without_blanks(predicted))
    if given is None:
        return without_blanks(predicted) == wanted[1]
    return given[1] == wanted[1] and _base(given[2]) == _base(wanted[2])


def _base(name: str) -> str:
    return _BASES.get(name.lower(), name)


def _same_text(predicted: str, gold: str) -> bool | None:
    plain = _TEXT.sub(r" \1 ", gold).strip()
    if _WORDS.fullmatch(plain) is None or (plain == gold and len(plain.split()[0]) < _MIN_WORD - plain.split()[0].istitle()):
        return None
    return _plain(predicted) == _plain(gold)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]|_", " ", _TEXT.sub(r" \1 ", text)).casefold().split())


class _Time(NamedTuple):
    seconds: int  # since midnight; since midnight or noon if the half of the day is not given
    dial: bool  # the half of the day is not given
    marked: bool  # as a time, by a.m., noon or the like, or by seconds: it cannot be a ratio
    parts: int


def same_moment(predicted: str, gold: str) -> bool | None:
    """Return whether two tidied answers are the same date or time; None if ``gold`` is neither.

    The half of the day may be left out. A date in figures with the year last (5/6/2024) equals only the same figures, since it
    may begin with the month or the day. 3:15 counts as a ratio, unless one of the two answers is clearly a time (2:05).
    """
    predicted, gold = (_TEXT.sub(r" \1 ", text).strip().lower() for text in (predicted, gold))
    date = _date(gold)
    if date is not None:
        return _date(predicted) == date
    wanted, given, zero = _time(gold), _time(predicted), ":0" in predicted + gold
    if wanted is None or not (wanted.marked or (given is not None and wanted.parts > 1 and (given.marked or zero))):
        return None
    if given is None or wanted.dial == given.dial:
        return given is not None and given.seconds == wanted.seconds
    return (given if wanted.dial else wanted).marked and (given.seconds - wanted.seconds) % (12 * 3600) == 0


def _time(text: str) -> _Time | None:
    match = _TIME.fullmatch(f"12 {text}" if text in ("noon", "midnight") else text)
    if match is None:
        return None
    hour, minute, second = (int(match[part] or 0) for part in (1, 2, 3))
    half = (match[4] or "o")[0]  # of a.m., p.m., noon, midnight; o'clock says nothing
    if hour > 23 or minute > 59 or second > 59 or (half != "o" and not 0 < hour < 13):
        return None
    hours = hour if half == "o" else hour % 12 + 12 * (half in "pn")
    marked = match[4] is not None or match[3] is not None
    return _Time(3600 * hours + 60 * minute + second, half == "o" and 0 < hour < 13, marked, 1 + (match[2] is not None))


def _date(text: str) -> tuple[object, ...] | None:
    figures = _IN_FIGURES.fullmatch(text)
    if figures is not None:
        first, second, year = map(int, figures.groups())
        if first <= 12 and second <= 12 and first != second:
            return first, second, year
        text = f"{year}-{min(first, second)}-{max(first, second)}"
    plain = " ".join(_BESIDE.sub(" ", text).split())
    for form in _DATES:
        with_year = "%Y" in form
        try:
            found = datetime.strptime(plain if with_year else f"{plain} {_YEARLESS}", form if with_year else f"{form} %Y")
        except ValueError:
            continue
        return found.year if with_year else None, found.month, found.day if "%d" in form else None
    return None
