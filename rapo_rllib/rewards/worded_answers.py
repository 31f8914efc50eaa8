r"""Answers that no arithmetic decides: words (``\text{east}``), letters of a choice (``(C)``), digits in a base (``52_8``)."""

from __future__ import annotations

import re

from rapo_rllib.rewards.latex import without_blanks
from rapo_rllib.rewards.words import hedged

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_LETTER = re.compile(r"(?:\\text\{\s*)?\(?\s*(?:\\text\{\s*)?([A-Ja-j])(?:\s*\})?\s*\)?(?:\s*\})?")
_ALONE = re.compile(r"\\text\{\s*\(?\s*([A-J])\s*\)?\s*\}|\(\s*(?:\\text\{)?\s*([A-J])\s*\}?\s*\)")
_OPTION = re.compile(r"\(?(?:\\text\{\s*)?\(?([A-J])\s*\)?\s*\}?\s*(?:[.:)]|(?<=[)}]))\s*([^\s)}].*)", re.DOTALL)
_OTHER = re.compile(r"(?<![A-Za-z\\])[A-Ja-j]\s*[.)?]|\(\s*[A-J]|\b[A-J]\b|^\s*(?:[,;/&]|\\text\{\s*(?:and|or))")
_LETTERS_APART = re.compile(r"[\s,]|\\text|[{}()]|\band\b")
_SEVERAL = re.compile(r"[A-J]{2,}")
_BASED = re.compile(r"(-?[0-9A-Za-z]+)_\{?(?:\\text\{)?\s*(\w+)\s*\}?\}?")
_WORDS = re.compile(r"[^\W\d_]{2}[^\d_\\^{}=+*/<>]*")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"}
_MIN_WORD = 4  # letters without blanks: shorter ones may be a product of variables


def option(text: str) -> tuple[str, str] | None:
    """Letter and content of a multiple-choice answer that has both. Example: ``C. 7`` gives ``("C", "7")``.

    Content that names another choice, or takes this one back, is none.
    """
    match = _OPTION.fullmatch(text)
    if match is None or _OTHER.search(match[2]) or hedged(match[2]):
        return None
    return match[1], match[2]


def same_words(predicted: str, gold: str) -> bool | None:
    """Whether two tidied answers are the same letters, digits in a base, or words; None if ``gold`` is none of these."""
    for compare in (_same_letter, _same_letters, _same_digits, _same_text):
        found = compare(predicted, gold)
        if found is not None:
            return found
    return None


def _same_letter(predicted: str, gold: str) -> bool | None:
    wanted = _ALONE.fullmatch(gold)
    if wanted is None:
        return None
    letter = _LETTER.fullmatch(predicted)
    chosen = option(predicted)
    given = letter[1].upper() if letter else chosen[0] if chosen else None
    return given == (wanted[1] or wanted[2])


def _same_letters(predicted: str, gold: str) -> bool | None:
    """Several choices, named in the order of the alphabet."""
    wanted = _LETTERS_APART.sub("", gold)
    if _SEVERAL.fullmatch(wanted) is None or list(wanted) != sorted(set(wanted)):
        return None
    return sorted(_LETTERS_APART.sub("", predicted)) == list(wanted)


def _same_digits(predicted: str, gold: str) -> bool | None:
    """The base may be left out, since the question names it; another base is another number."""
    wanted = _BASED.fullmatch(without_blanks(gold))
    if wanted is None or not wanted[1].lstrip("-")[0].isdigit():
        return None
    given = _BASED.fullmatch(without_blanks(predicted))
    if given is None:
        return without_blanks(predicted) == wanted[1]
    return given[1] == wanted[1] and _base(given[2]) == _base(wanted[2])


def _base(name: str) -> str:
    return _BASES.get(name.lower(), name)


def _same_text(predicted: str, gold: str) -> bool | None:
    plain = _TEXT.sub(r" \1 ", gold).strip()
    if _WORDS.fullmatch(plain) is None or (plain == gold and len(plain.split()[0]) < _MIN_WORD):
        return None
    return _plain(predicted) == _plain(gold)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]|_", " ", _TEXT.sub(r" \1 ", text)).casefold().split())
