r"""Reading of the answer in the last step: ``env_config.read_answer``, and ``rllib evaluate --answers``.

``tagged``: between the protocol's tags, with or without a box, as the prompt asks for; ``boxed``: in the last ``\boxed{...}``,
with or without tags; ``any``: as the model gives it, in tags, a box, behind "The answer is" or "####", or in the last line.
"""

from __future__ import annotations

import re
from typing import Literal

from rapo_rllib.protocol.steps import boxed_answer, last_box
from rapo_rllib.settings import ProtocolSettings

Answers = Literal["tagged", "boxed", "any"]
_NAMED = re.compile(
    r"(?:^####[ \t]*|\banswers?\b[^.:=\n]{0,40}?(?:\bis\b|\bare\b|[:=])[\s*:]*)(?=\S)([^\n]+)", re.IGNORECASE | re.MULTILINE
)
_SENTENCE = re.compile(r"(?<=[^\W_]{3})[.!](?=\s)|(?<=[\d$})])[.!](?=\s)")
_VALUE = re.compile(r"\$(?!\d[^$]*\s)([^$\n]+)\$|\\\((.+?)\\\)|(-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?)")
_MAX_WORDS = 3  # of a last line that is an answer, not a sentence about one


def read_answer(tagged: str | None, text: str, settings: ProtocolSettings, answers: Answers, in_words: bool) -> str | None:
    r"""Return the answer in a final step; None if there is none.

    Args:
        tagged: what stands between the tags, where the step has them.
        text: of the step.
        settings: the tags of thoughts.
        answers: where it is looked for; in the tags first.
        in_words: the question asks for words; of a sentence that ends the answer to another one the last value is taken.

    >>> read_answer(None, "<think>2 + 3</think>She has 5 left.", ProtocolSettings(), "any", in_words=False)
    '5'
    """
    if answers == "tagged":
        return None if tagged is None else boxed_answer(tagged)
    said = text.rpartition(f"</{settings.think_tag}>")[2] if tagged is None else tagged
    found = last_box(said)
    return found if found is not None or answers == "boxed" else _unboxed(said, in_words)


def _unboxed(said: str, in_words: bool) -> str | None:
    named = _NAMED.findall(said)
    if named:
        return _SENTENCE.split(_bare(named[-1]))[0] or None
    lines = [line for line in said.splitlines() if line.strip("*_`$ \t.")]
    line = _bare(lines[-1]) if lines else ""
    values = [] if in_words or len(line.split()) <= _MAX_WORDS else _VALUE.findall(line)
    return ("".join(values[-1]) if values else line) or None


def _bare(text: str) -> str:
    """Without the marks of bold text and code, and a full stop."""
    return re.sub(r"\*\*|__|`", "", text).strip().removesuffix(".").strip()
