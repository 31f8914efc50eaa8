r"""Compare dates and times of day: ``May 6, 2024`` is ``2024-05-06``, ``\text{6:00 PM}`` is ``18:00``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_TIME = re.compile(r"(\d{1,2})(?::(\d\d)(?::(\d\d))?)?(?:\s*(o'clock|noon|midnight|[ap](?=\.?m)\.?m\.?))?")
_WORDS = {"noon": "12 noon", "midnight": "12 midnight"}
_SECOND_HALF = {"a": False, "midnight": False, "p": True, "noon": True}
_DATES = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y"),
    *(f"{day}{year}" for day in ("%d %B", "%B %d", "%d %b", "%b %d") for year in ("", " %Y")),
    *("%B %Y", "%b %Y"),
)
_IN_FIGURES = re.compile(r"(\d\d?)[/-](\d\d?)[/-](\d{4})")
_BESIDE = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b|\b(?:of|the)\b|,|\.(?=\s|$)|^[a-z]+day\b")
_YEARLESS = 1904  # a leap year, so that February 29 is a day of it


@dataclass(frozen=True)
class _Time:
    seconds: int  # since midnight, or noon where only the twelve hours of a dial are named
    dial: bool  # the half of the day is not said
    marked: bool  # by a.m., noon or the like: it cannot be a ratio
    parts: int


def same_moment(predicted: str, gold: str) -> bool | None:
    """Whether two tidied answers are the same date or time; None if ``gold`` is neither.

    The half of the day may be left out. A date in figures with the year last (5/6/2024) is that of the same figures alone: it
    may begin with the month or the day. 3:15 may be a ratio, unless the other answer is clearly a time.
    """
    predicted, gold = (_TEXT.sub(r" \1 ", text).strip().lower() for text in (predicted, gold))
    date = _date(gold)
    if date is not None:
        return _date(predicted) == date
    wanted, given = _time(gold), _time(predicted)
    if wanted is None or (wanted.parts == 1 and not wanted.marked):
        return None
    certain = wanted.marked or wanted.parts == 3 or (given is not None and given.marked)
    if given is None:
        return False if certain else None
    if (wanted.dial and given.dial) or not (wanted.dial or given.dial):
        same = given.seconds == wanted.seconds
    else:
        whole = given if wanted.dial else wanted
        same = whole.marked and (given.seconds - wanted.seconds) % (12 * 3600) == 0
    return same if same or certain else None


def _time(text: str) -> _Time | None:
    match = _TIME.fullmatch(_WORDS.get(text, text))
    if match is None:
        return None
    hour, minute, second = (int(match[part] or 0) for part in (1, 2, 3))
    mark = "" if match[4] in (None, "o'clock") else match[4] if match[4] in _SECOND_HALF else match[4][0]
    if hour > 23 or minute > 59 or second > 59 or (mark and not 0 < hour < 13):
        return None
    late = _SECOND_HALF.get(mark, False)
    hours = hour % 12 + 12 * late if mark else hour
    parts = 1 + (match[2] is not None) + (match[3] is not None)
    return _Time(3600 * hours + 60 * minute + second, not mark and 0 < hour < 13, bool(match[4]), parts)


def _date(text: str) -> tuple[object, ...] | None:
    figures = _IN_FIGURES.fullmatch(text)
    if figures is not None:
        first, second, year = map(int, figures.groups())
        if first <= 12 and second <= 12 and first != second:
            return "in figures", first, second, year
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
