r"""Answers of several parts: lists, points, intervals, sets, unions, matrices. Each part is compared by itself.

Points, intervals and matrices have an order, lists and sets have none. ``1 \pm 2`` is the list ``3, -1``. Parts with names
(``x=3, y=5``) are compared by name, and stand for the values in the order of the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rapo_rllib.rewards.latex import named

Compare = Callable[[str, str], bool]  # predicted, gold
_OPENING, _CLOSING = "([{", ")]}"
_BRACKETS = (("\\{", "\\}"), ("\\langle", "\\rangle"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"))
_MATRIX = re.compile(r"\\begin\{([pv]matrix)\}(.*)\\end\{\1\}", re.DOTALL)
_UNION = re.compile(r"\\cup(?![a-zA-Z])")
_NOTHING = ("\\emptyset", "\\varnothing", "∅")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
MAX_PARTS = 50  # of an answer; more are compared as text only


@dataclass(frozen=True)
class Parts:
    """Brackets (empty: there are none) and what stands between them."""

    brackets: tuple[str, str]
    items: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """Whether the parts have an order."""
        return self.brackets not in (("", ""), ("\\{", "\\}"))


def same_parts(predicted: str, gold: str, equal: Compare) -> bool | None:
    """Whether the parts of two tidied answers agree; None if ``gold`` is one value."""
    for compare in (_same_matrix, _same_union, _same_list):
        found = compare(predicted, gold, equal)
        if found is not None:
            return found
    return None


def _same_matrix(predicted: str, gold: str, equal: Compare) -> bool | None:
    wanted, given = _MATRIX.fullmatch(gold), _MATRIX.fullmatch(predicted)
    if wanted is None or given is None:
        return None if wanted is given else False
    if wanted[1] != given[1]:
        return False
    rows = [[row.split("&") for row in re.split(r"\\\\", side[2].strip().removesuffix("\\\\"))] for side in (given, wanted)]
    if [len(row) for row in rows[0]] != [len(row) for row in rows[1]]:
        return False
    return all(equal(a.strip(), b.strip()) for left, right in zip(*rows, strict=True) for a, b in zip(left, right, strict=True))


def _same_union(predicted: str, gold: str, equal: Compare) -> bool | None:
    wanted = _UNION.split(gold)
    if len(wanted) == 1:
        return None
    given = _UNION.split(predicted) if _UNION.search(predicted) else list(parts(predicted).items)
    return _matched(given, wanted, equal)


def _same_list(predicted: str, gold: str, equal: Compare) -> bool | None:
    right, left = parts(gold), parts(predicted)
    if not right.brackets[0] and len(right.items) == 1:
        return False if len(left.items) > 1 and not _interval_of(left, gold) else None
    if len(left.items) != len(right.items):
        return None if _interval_of(right, predicted) else False
    if max(len(left.items), len(right.items)) > MAX_PARTS:
        return False
    if not _brackets_agree(left, right):
        return False
    return _same_items(left, right, equal)


def _interval_of(interval: Parts, other: str) -> bool:
    """Whether ``other`` is an inequality, which may stand for an interval."""
    bounds = interval.brackets[0] in ("(", "[") and len(interval.items) == 2
    return bounds and re.search(r"[<>]|\\(?:le|ge)(?![a-zA-Z])", other) is not None


def _brackets_agree(left: Parts, right: Parts) -> bool:
    """Brackets may be left out, but those of an interval say which ends belong to it."""
    if not left.brackets[0]:
        return right.brackets in (("", ""), ("\\{", "\\}"), ("(", ")"), ("\\langle", "\\rangle"))
    if not right.brackets[0]:
        return left.brackets in (("\\{", "\\}"), ("(", ")"))
    return left.brackets == right.brackets or {left.brackets, right.brackets} <= {("(", ")"), ("\\langle", "\\rangle")}


def _same_items(left: Parts, right: Parts, equal: Compare) -> bool:
    given, wanted = ([named(item) for item in side.items] for side in (left, right))
    given_names, wanted_names = _distinct(given), _distinct(wanted)
    bases, meant = {name.partition("_")[0] for name in given_names}, {name for name, _ in wanted}
    if len(bases) == 1 and not wanted_names and meant <= {None, *bases}:  # x_1=3, x_2=4: two values of x
        return _matched([value for _, value in given], [value for _, value in wanted], equal)
    if given_names and meant not in ({None}, set(given_names)):
        return False  # x=1, y=-3 are not
    if wanted_names and any(name is not None for name, _ in given):
        found = dict(given)
        return set(given_names) == set(wanted_names) and all(equal(found[name], value) for name, value in wanted)
    if given_names:
        given = sorted(given, key=lambda item: item[0] or "")
    if given_names or wanted_names or left.ordered or right.ordered:
        return all(equal(a, b) for (_, a), (_, b) in zip(given, wanted, strict=True))
    return _matched(left.items, right.items, equal)


def _distinct(items: Sequence[tuple[str | None, str]]) -> list[str]:
    """The names, if every item has one of its own; else none."""
    names = [name for name, _ in items if name is not None]
    return names if len(set(names)) == len(items) > 1 else []


def _matched(given: Sequence[str], wanted: Sequence[str], equal: Compare) -> bool:
    """Whether the two agree in some order."""
    if len(given) != len(wanted) or len(given) > MAX_PARTS:
        return False
    left = list(given)
    for gold in wanted:
        found = next((item for item in left if equal(item.strip(), gold.strip())), None)
        if found is None:
            return False
        left.remove(found)
    return True


def parts(text: str) -> Parts:
    r"""The parts of a tidied answer; one value is one part without brackets.

    >>> parts("(1, 2]").items, parts(r"1 \pm 2").items
    (('1', '2'), ('1 + 2', '1 - 2'))
    """
    text = text.strip()
    if text in _NOTHING:
        return Parts(("\\{", "\\}"), ())
    name, value = named(text)
    if name is not None and name.startswith("("):
        names, values = list(_split(name[1:-1], True)), list(parts(value).items)
        if len(names) == len(values):
            return Parts(("", ""), tuple(f"{n} = {v}" for n, v in zip(names, values, strict=True)))
    for opening, closing in _BRACKETS:
        inner = text[len(opening) : len(text) - len(closing)]
        if text.startswith(opening) and text.endswith(closing) and _closed(inner):
            items = [item for item in _split(inner, True) if item]
            if len(items) > 1 or opening == "\\{":
                # signs of an interval or a point belong together
                return Parts((opening, closing), tuple(_signed(items) if opening == "\\{" else items))
    return Parts(("", ""), tuple(_signed(list(_split(text, False)))))


def _signed(items: Sequence[str]) -> list[str]:
    r"""With both signs of every ``\pm``."""
    return [value for item in items for value in _both_signs(item)]


def _both_signs(item: str) -> list[str]:
    if "\\pm" not in item:
        return [item]
    return [
        re.sub(r"\\mp(?![a-zA-Z])", lower, re.sub(r"\\pm(?![a-zA-Z])", upper, item)).strip() for upper, lower in ("+-", "-+")
    ]


def _closed(text: str) -> bool:
    """Whether no bracket closes that was not opened here."""
    return min(_depths(text), default=0) >= 0


def _depths(text: str) -> Iterator[int]:
    """Count the brackets that are open after each character."""
    depth = 0
    for character in text:
        depth += (character in _OPENING) - (character in _CLOSING)
        yield depth


def _split(text: str, inside: bool) -> Iterator[str]:
    """Split at commas, or semicolons, outside brackets. Outside all of them 1,080 is one number."""
    begin, numbers = 0, [] if inside else [match.span() for match in _THOUSANDS.finditer(text)]
    for index, depth in enumerate(_depths(text)):
        if depth == 0 and text[index] in ",;" and not any(start < index < end for start, end in numbers):
            yield text[begin:index].strip()
            begin = index + 1
    yield text[begin:].strip()
