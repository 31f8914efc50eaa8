r"""Take off what comes before a value: ``The answer is 5``, ``x = 5``. Nothing else may, or bounds and denials would count."""

from __future__ import annotations

import re

from rapo_rllib.rewards.latex import without_blanks
from rapo_rllib.rewards.words import hedged

_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|then)\b,?\s+)?"
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
_MAX_NAME = 40  # characters
_MEMBER = re.compile(r"([a-zA-Z])\s*\\in(?![a-zA-Z])\s*(.+)", re.DOTALL)
_CALCULATION = re.compile(r"[+*/^!]|(?<=[\w)}])-|\\(?:frac|sqrt|cdot|times|div)")
_RATIO = re.compile(r"/|\\frac")


def repeated(predicted: str, gold: str, question: str) -> bool:
    r"""Whether an answer only copies a calculation from the question, as in "Expand $(x+1)(x+2)$"; all are tidied.

    A decimal from the question is no answer where the gold answer is a fraction: "Write 0.25 as a fraction".
    """
    text = without_blanks(predicted)
    if text == without_blanks(gold):
        return False
    if _CALCULATION.search(text) is None and (_RATIO.search(gold) is None or "." not in text):
        return False
    spaced = r"\s*".join(map(re.escape, text))
    return re.search(rf"(?<![\w.]){spaced}(?!\w|\.\d)", question) is not None


def stated(text: str) -> str:
    """A tidied answer without "The answer is", and without a box of text around all of it.

    >>> stated("So the answer is: 5")
    '5'
    """
    opened = _TEXT_LEAD.match(text)
    if opened is not None and opened.end() == len(text):
        text, opened = opened[1], None
    if opened is not None and (lead := _LEAD.match(opened[1])) is not None:
        text = opened[1][lead.end() :] + text[opened.end() :]
    else:
        lead = _LEAD.match(text)
        text = text[lead.end() :] if lead is not None else text
    return text.strip()


def named(text: str) -> tuple[str | None, str]:
    r"""Name and value of an answer; None: it has no name. A name holds letters and no numbers: ``6=5`` has none.

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
    r"""Whether a text names something: ``x``, ``f(2)``, ``AB``, ``a+b``, ``\text{area}``; not ``2x`` or ``-x``."""
    if not text or len(text) > _MAX_NAME:
        return False
    rest = _COMMAND.sub(" a ", _ATTACHED.sub(lambda match: f" {match[1] or 'a'} ", text)).strip()
    return _NAME.fullmatch(rest) is not None and not hedged(rest)
