r"""One notation for answers, which models write in many: ``\dfrac34`` is ``\frac{3}{4}``, ``The answer is 5`` is ``5``.

Only text without meaning is removed. Words that change a value's meaning stay: "5 apples" is 5; "at least 5", "not 5" are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

_WRITTEN = (  # the one notation, and the notations that it replaces
    ("", "\\left. \\left \\right \\displaystyle {}"),
    (" ", "\\, \\; \\: \\> ~ \\quad \\qquad \\thinspace \\enspace"),
    ("\\ldots", "\\dots \\cdots …"),
    ("\\frac", "\\dfrac \\tfrac \\cfrac"),
    ("\\text", "\\mbox \\textrm \\textnormal \\textbf \\textit \\mathrm \\mathbf \\operatorname"),
    ("\\le", "\\leqslant \\leq"),
    ("\\ge", "\\geqslant \\geq"),
    ("pmatrix", "bmatrix Bmatrix"),
    ("\\\\", "\\\\"),  # a new row, not an escaped blank
    *(("\\{", "\\lbrace"), ("\\}", "\\rbrace"), ("^\\circ", "\\degree"), (",", "{,} ，"), ("%", "\\%")),
    *(("<", "＜"), (">", "＞"), ("-", "− –"), ("^", "**")),
    ("(-\\infty,\\infty)", "\\mathbb{R} ℝ"),
)
_SIGNS = "≤le ≥ge ⩽le ⩾ge πpi ∞infty ∪cup ±pm ∠angle △triangle ×times"
_REPLACED = {name: written for written, names in _WRITTEN for name in names.split()}
_REPLACED |= {sign[0]: f"\\{sign[1:]} " for sign in _SIGNS.split()}  # a blank ends the command: πr is not \pir
_REPLACED |= {"\\ ": " ", "\\mathbb R": "(-\\infty,\\infty)"}
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
_MONEY = "\ue000"  # stands for an escaped dollar sign
_ONE = r"\s*(\d|[a-zA-Z]|\\pi(?![a-zA-Z]))"
_GROUP = r"\s*(\{[^{}]*\})"
_GOES_ON = re.compile(r"(\.\d+)\s*\.{3,}")
_GROUPS = re.compile(r"(?<![\w.,/^])\d{1,3}(?: \d{3})+(?![\d/]| [\d/])")
_SYSTEM = re.compile(r"(?:\\\{ *)?\\begin\{(cases|array|aligned)\}(?:\{\w*\})?([^&]*)\\end\{\1\}\.?")
_END = re.compile(r"(?:\\[,;:]|[\s.,;])+\Z")
BOUND = re.compile(r"[<>]|\\(?:l|g)(?:e|eq|t)(?![a-zA-Z])")
_VARIABLE = re.compile(r"([a-zA-Z]+)(?:_\w+)?\s*=")
_LIST_WORD = re.compile(r",?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*")
_SET_BUILDER = re.compile(r"\\\{\s*([a-zA-Z])\s*(?:\||\\mid(?![a-zA-Z])|:)\s*(.*[<>=].*|.*\\(?:le|ge)(?![a-zA-Z]).*)\\\}")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"(?<=\d)\s*(\\text\{{)?\s*({'|'.join(_SCALES)}|dozen)s?\b\s*(\}})?")
_LEAD = re.compile(
    r"\A(?:(?:so|thus|hence|therefore|then)\b,?\s+)?"
    r"(?:(?:(?:the|my|our)\s+)?(?:final\s+|correct\s+)?(?:answer|result|solution|value)(?:\s+(?:is|equals)\b|\s*[:=])|it\s+(?:is|equals)\b)"
    r"\s*:?\s*",
    re.IGNORECASE,
)
_TEXT_LEAD = re.compile(r"\\text\{\s*([^{}]*?)\s*\}\s*")
_EQUALS = re.compile(r"(?<![\\<>!:])=")
# what a name may hold beside letters: subscripts, arguments, small powers, words
_ATTACHED = re.compile(r"_\{[^{}]*\}|_\w|\^\{?-?\d\}?|(?<=[a-zA-Z}])\([^()]*\)|\\text\{([^{}\d]*)\}")
_COMMANDS = (
    "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|phi|varphi|psi|omega|rho|sigma|tau|Delta|Gamma|Omega|ell|angle|triangle|"
    "overline|vec|hat|bar|frac|sqrt|sin|cos|tan|log|ln|cdot|pi"
)
_COMMAND = re.compile(rf"\\(?:{_COMMANDS})(?![a-zA-Z])")
_NAME = re.compile(r"[a-zA-Z{][a-zA-Z\s+'|{}/-]*|\|[a-zA-Z\s]+\||\(\s*[a-zA-Z]\s*(?:,\s*[a-zA-Z]\s*)+\)")
_MEMBER = re.compile(r"([a-zA-Z])\s*\\in(?![a-zA-Z])\s*(.+)", re.DOTALL)
_CALCULATION = re.compile(r"[+*/^!]|(?<=[\w)}])-|\\(?:frac|sqrt|cdot|times|div)")
_RATIO = re.compile(r"/|\\frac")
_WORDS = (
    "an|the|this|that|these|those|it|he|she|they|we|you|if|unless|than|then|as|but|and|or|nor|xor|versus|vs|not|no|"
    "never|neither|none|cannot|isn|aren|wasn|can|could|may|might|must|should|would|will|be|is|are|was|were|been|at|on|"
    "by|for|from|to|with|without|about|around|near|over|under|above|below|between|up|off|out|past|within|beyond|more|"
    "less|fewer|greater|larger|smaller|bigger|least|most|minimum|maximum|max|too|also|else|only|instead|except|nearly|"
    "almost|approximately|approx|roughly|circa|maybe|perhaps|possibly|probably|likely|either|both|all|any|every|"
    "another|other|wrong|incorrect|false|untrue|invalid|negative|positive|minus|plus|times|divided|multiplied|modulo|"
    "mod|factorial|power|root|squared|cubed|half|halves|twice|double|triple|thrice|next|before|after|until|since|"
    "unknown|undefined|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    "sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|hundreds|"
    "thousand|thousands|million|millions|billion|billions|trillion|trillions|dozen|dozens|score|percent|percentage|"
    "nan|infinity|infinite|ish"
)
_HEDGE = re.compile(rf"(?<![a-zA-Z])(?:{_WORDS})(?![a-zA-Z])", re.IGNORECASE)


def tidied(text: str) -> str:
    r"""Strip pure formatting from an answer, and bring it to one notation.

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
    r"""Read ``5 million`` as a number, and ``2 dozen`` as a product."""
    name = match[2]
    factor = f"10^{{{_SCALES[name]}}}" if name in _SCALES else "12"
    return " ".join(("", "\\times", factor, "\\text{" if match[1] else "")) + (match[3] or "")


def joined_otherwise(left: str, right: str) -> bool:
    """Return whether one text joins bounds by ``and``, the other by ``or``: no number satisfies ``x<2 and x>3``.

    ``x=1 or y=3`` is not ``x=1, y=3`` either. Between other values the words mean the same: ``1 and 2`` lists solutions, as
    ``1 or 2`` does.
    """
    words = [{word for word in ("and", "or") if re.search(rf"(?<![a-zA-Z]){word}(?![a-zA-Z])", text)} for text in (left, right)]
    if any(len(set(_VARIABLE.findall(text))) > 1 for text in (left, right)):
        return ("or" in words[0]) != ("or" in words[1])
    return bool(BOUND.search(left) and BOUND.search(right)) and all(words) and words[0] != words[1]


def one_list(text: str) -> str:
    """Replace list words by commas: ``5 or 6`` and ``5, and 6`` become ``5, 6``."""
    return _LIST_WORD.sub(", ", text)


def without_blanks(text: str) -> str:
    """Strip blanks, for comparison as text. A blank between digits or points stays: ``2 1/4`` is not ``21/4``."""
    return _BLANK.sub("", text)


def _unwrapped(text: str) -> str:
    """Strip the delimiters of mathematics; a dollar sign that is no delimiter, or is escaped, is money."""
    text = re.sub(r"\A\\\[(.*)\\\]\Z", r"\1", text.replace("\\$", _MONEY), flags=re.DOTALL)
    return re.sub(r"\$\$?([^$]+)\$\$?", r"\1", text).replace(_MONEY, "$").replace("\\(", "").replace("\\)", "")


def repeated(predicted: str, gold: str, question: str) -> bool:
    r"""Return whether an answer only copies a calculation from the question, as in "Expand $(x+1)(x+2)$"; all texts are tidied.

    A decimal from the question is such a copy, too, if the gold answer is a fraction: "Write 0.25 as a fraction".
    """
    text = without_blanks(predicted)
    if text == without_blanks(gold):
        return False
    if _CALCULATION.search(text) is None and (_RATIO.search(gold) is None or "." not in text):
        return False
    spaced = r"\s*".join(map(re.escape, text))
    return re.search(rf"(?<![\w.]){spaced}(?!\w|\.\d)", question) is not None


def stated(text: str) -> str:
    """Strip "The answer is" from a tidied answer, and a box of text around the whole answer.

    >>> stated("So the answer is: 5")
    '5'
    """
    opened = _TEXT_LEAD.match(text)
    if opened is not None and (opened.end() == len(text) or _LEAD.match(opened[1])):
        text = f"{opened[1]} {text[opened.end() :]}"
    return _LEAD.sub("", text, count=1).strip()


def named(text: str) -> tuple[str | None, str]:
    r"""Split an answer into name and value; None: it has no name. A number is no name: ``6=5`` has none.

    >>> named("f(2) = 5"), named("6=5"), named(r"x \in [1,2]")
    (('f(2)', '5'), (None, '6=5'), ('x', '[1,2]'))
    """
    member = _MEMBER.fullmatch(text)
    if member is not None:
        return member[1], member[2].strip()
    sides = [side.strip() for side in _EQUALS.split(text)]
    if len(sides) != 2:
        return None, text
    left, right = sides
    if is_name(left):
        return left.replace(" ", ""), right
    return (right.replace(" ", ""), left) if is_name(right) else (None, text)


def is_name(text: str) -> bool:
    r"""Return whether a text names something: ``x``, ``f(2)``, ``AB``, ``a+b``, ``\text{area}``; not ``2x`` or ``-x``."""
    rest = _COMMAND.sub(" a ", _ATTACHED.sub(lambda match: f" {match[1] or 'a'} ", text)).strip()
    return _NAME.fullmatch(rest) is not None and not hedged(rest)


def hedged(text: str) -> bool:
    """Return whether a text holds words that change what a value says."""
    return _HEDGE.search(text) is not None


def depths(text: str, opening: str = "([{", closing: str = ")]}") -> Iterator[int]:
    """Count the brackets that are open after each character."""
    return accumulate((character in opening) - (character in closing) for character in text)
