"""Results as the policy reads them: clean text, numbered, each within a number of characters.

[1] Lyon - Wikipedia
https://en.wikipedia.org/wiki/Lyon
Lyon is the second-largest city of France ...
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from rapo_rllib.web_search.providers import Hit

RESULT_CHARS = 600  # of a result: title, address, and what is left for its snippet
_TITLE_CHARS = 150
_URL_CHARS = 300
# What providers put around words. Other tags are text: results about HTML and C++ are full of them.
_MARKS = re.compile(r"</?(?:strong|em|b|i|u|mark|span|wbr|br|p)(?:\s[^<>]*)?/?>", re.IGNORECASE)
# Control characters, lone surrogates, and what is invisible or turns the direction of writing.
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def clean_line(text: str) -> str:
    r"""One line of plain text: no marks, no entities, no control characters, single spaces.

    >>> clean_line("<strong>Lyon</strong>&#x27;s  rivers:\n Rhône &amp; Saône")
    "Lyon's rivers: Rhône & Saône"
    """
    return one_line(html.unescape(_MARKS.sub("", text)))


def one_line(text: str) -> str:
    """``text`` without control characters, with single spaces."""
    return " ".join(_UNSEEN.sub("", text).split())


def observation(hits: Sequence[Hit]) -> str:
    """The results, each in at most ``RESULT_CHARS`` characters."""
    return "\n\n".join(_entry(number, hit) for number, hit in enumerate(hits, start=1))


def _entry(number: int, hit: Hit) -> str:
    url = _cut(one_line(hit.url).replace(" ", "%20"), _URL_CHARS)
    head = f"[{number}] {_cut(clean_line(hit.title) or '(no title)', _TITLE_CHARS)}\n{url}\n"
    return f"{head}{_cut(clean_line(hit.snippet), RESULT_CHARS - len(head))}".rstrip()


def _cut(text: str, most: int) -> str:
    """At most so many characters, the last three of them dots where something is missing."""
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."
