r"""One way of writing for what LaTeX, and models, write in many: ``\dfrac34`` is ``\frac{3}{4}``, ``{,}`` is a comma."""

from __future__ import annotations

import re

_REPLACED = {
    **dict.fromkeys(("\\left.", "\\left", "\\right", "\\displaystyle", "{}"), ""),
    **dict.fromkeys(("\\,", "\\;", "\\:", "\\>", "\\ ", "~", "\\quad", "\\qquad", "\\thinspace", "\\enspace"), " "),
    **dict.fromkeys(("\\dots", "\\cdots", "…"), "\\ldots"),
    **dict.fromkeys(("\\dfrac", "\\tfrac", "\\cfrac"), "\\frac"),
    **dict.fromkeys(
        ("\\mbox", "\\textrm", "\\textnormal", "\\textbf", "\\textit", "\\mathrm", "\\mathbf", "\\operatorname"), "\\text"
    ),
    **dict.fromkeys(("\\leqslant", "\\leq"), "\\le"),
    **dict.fromkeys(("\\geqslant", "\\geq"), "\\ge"),
    **dict.fromkeys(("bmatrix", "Bmatrix"), "pmatrix"),
    "\\\\": "\\\\",  # a new row, no escaped blank
    "\\lbrace": "\\{",
    "\\rbrace": "\\}",
    "\\degree": "^\\circ",
    "{,}": ",",
    "\\%": "%",
    "＜": "<",
    "＞": ">",
    "，": ",",
    "−": "-",
    "–": "-",
    # a blank ends the command: πr is not \pir
    **dict.fromkeys("≤⩽", "\\le "),
    **dict.fromkeys("≥⩾", "\\ge "),
    "π": "\\pi ",
    "∞": "\\infty ",
    **dict.fromkeys(("\\mathbb{R}", "\\mathbb R", "ℝ"), "(-\\infty,\\infty)"),
    "∪": "\\cup ",
    "±": "\\pm ",
    "∠": "\\angle ",
    "△": "\\triangle ",
    "×": "\\times ",
    "**": "^",
}
# longest first, and a command only where its name ends
_REPLACE = re.compile(
    "|".join(
        re.escape(name) + ("(?![a-zA-Z])" if re.fullmatch(r"\\[a-zA-Z]+", name) else "")
        for name in sorted(_REPLACED, key=len, reverse=True)
    )
)
_ROOT = re.compile(r"√\s*(?:(\d+(?:\.\d+)?|[a-zA-Z])|\(([^()]*)\))")
_PLAIN_ROOT = re.compile(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)")
_PLAIN_PI = re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])")
_BLANK = re.compile(r"(?<![\d.])\s+|\s+(?![\d.])")
_WRAPPED = tuple((re.escape(a), re.escape(b)) for a, b in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")))
_MONEY = "\ue000"  # stands for an escaped dollar sign
_ONE = r"\s*(\d|[a-zA-Z]|\\pi(?![a-zA-Z]))"
_GROUP = r"\s*(\{[^{}]*\})"
_GOES_ON = re.compile(r"(\.\d+)\s*\.{3,}")
_GROUPS = re.compile(r"(?<![\w.,/^])\d{1,3}(?: \d{3})+(?![\d/]| [\d/])")
_SYSTEM = re.compile(r"(?:\\\{ *)?\\begin\{(cases|array|aligned)\}(?:\{\w*\})?([^&]*)\\end\{\1\}\.?")
_END = re.compile(r"(?:\\[,;:]|[\s.,;])+\Z")
_BOUND = re.compile(r"[<>]|\\(?:l|g)(?:e|eq|t)(?![a-zA-Z])")
_VARIABLE = re.compile(r"([a-zA-Z]+)(?:_\w+)?\s*=")
_LIST_WORD = re.compile(r",?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*")
_SET_BUILDER = re.compile(r"\\\{\s*([a-zA-Z])\s*(?:\||\\mid(?![a-zA-Z])|:)\s*(.*[<>=].*|.*\\(?:le|ge)(?![a-zA-Z]).*)\\\}")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"(?<=\d)\s*(\\text\{{)?\s*({'|'.join(_SCALES)}|dozen)s?\b\s*(\}})?")


def tidied(text: str) -> str:
    r"""The answer without what changes its looks only.

    >>> tidied("$\\left( 3,\\ \\dfrac12 \\right)$.")
    '( 3, \\frac{1}{2} )'
    """
    text = _GOES_ON.sub(r"\1\\ldots", re.sub(r"\\!\s*", "", text))
    text = _unwrapped(_END.sub("", text).strip())
    text = _REPLACE.sub(lambda match: _REPLACED[match[0]], text)
    text = _ROOT.sub(lambda match: f"\\sqrt{{{match[1] or match[2]}}}", text)
    text = _PLAIN_PI.sub(r"\\pi ", _PLAIN_ROOT.sub(r"\\sqrt{\1}", text))
    text = re.sub(rf"\\frac{_ONE}(?=\s*[\\{{\da-zA-Z])", r"\\frac{\1}", text)
    text = re.sub(rf"\\frac{_GROUP}{_ONE}", r"\\frac\1{\2}", text)
    text = _SCALE.sub(_scaled, text)
    text = _SET_BUILDER.sub(r"\2", text)
    text = _SYSTEM.sub(lambda match: match[2].replace("\\\\", ", "), text)
    text = _GROUPS.sub(lambda match: match[0].replace(" ", ""), re.sub(r"\s+", " ", text))
    return _END.sub("", text).strip()


def _scaled(match: re.Match[str]) -> str:
    r"""``5 million`` is a number, and ``2 dozen`` a product."""
    name = match[2]
    factor = f"10^{{{_SCALES[name]}}}" if name in _SCALES else "12"
    opened = "" if match[1] is None else "\\text{"
    return f" \\times {factor} {opened}{match[3] or ''}".replace("\\text{}", "")


def joined_otherwise(left: str, right: str) -> bool:
    """Whether one says ``and`` between bounds where the other says ``or``: ``x<2 and x>3`` is no number.

    ``x=1 or y=3`` is not ``x=1, y=3`` either. Between other values the words say the same: ``1 and 2`` are the solutions, as
    ``1 or 2`` are.
    """
    words = [{word for word in ("and", "or") if re.search(rf"(?<![a-zA-Z]){word}(?![a-zA-Z])", text)} for text in (left, right)]
    if any(len(set(_VARIABLE.findall(text))) > 1 for text in (left, right)):
        return ("or" in words[0]) != ("or" in words[1])
    return bool(_BOUND.search(left) and _BOUND.search(right)) and all(words) and words[0] != words[1]


def one_list(text: str) -> str:
    """``5 or 6`` and ``5, and 6`` as ``5, 6``."""
    return _LIST_WORD.sub(", ", text)


def without_blanks(text: str) -> str:
    """For comparison as text. A blank between digits and points stays: ``2 1/4`` is not ``21/4``."""
    return _BLANK.sub("", text)


def _unwrapped(text: str) -> str:
    """Without the signs that begin and end mathematics; a dollar sign that does neither is money, as is an escaped one."""
    text = text.replace("\\$", _MONEY)
    for begin, end in _WRAPPED:
        match = re.fullmatch(rf"{begin}((?:(?!{begin}|{end}).)*){end}", text, flags=re.DOTALL)
        if match is not None:
            text = match[1].strip()
            break
    text = re.sub(r"\$([^$]+)\$", r"\1", text)
    return text.replace(_MONEY, "$").replace("\\(", "").replace("\\)", "")
