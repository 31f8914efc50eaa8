"""Results as the policy reads them: clean text, numbered, within a number of characters.

[1] Lyon - Wikipedia
https://en.wikipedia.org/wiki/Lyon
Lyon is the second-largest city of France ...
"""

from __future__ import annotations

import html
import re

from rapo_rllib.web_search.provider import Found, Hit

LEAST_CHARS = 100  # of a result: its number, enough of title and address, and some words
_TITLE_CHARS = 150
_URL_CHARS = 300
_LEAST_WORDS = 20  # characters of a snippet; a shorter rest says nothing
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


def cut(text: str, most: int) -> str:
    """At most so many characters; three of them dots where something is missing."""
    return text if len(text) <= most else text[: max(most - 3, 0)].rstrip() + "..."


def observation(found: Found, max_chars: int) -> str:
    """The results in at most ``max_chars`` characters, ``LEAST_CHARS`` or more for each.

    What one leaves of its share goes to those after it.
    """
    entries, left = [], max_chars
    if found.answer:
        entries.append(cut(f"Answer: {clean_line(found.answer)}", max_chars // 3))
        left -= len(entries[0]) + 2
    for index, hit in enumerate(found.hits):
        entries.append(_entry(index + 1, hit, left // (len(found.hits) - index) - 2))
        left -= len(entries[-1]) + 2
    return "\n\n".join(entries)


def _entry(number: int, hit: Hit, most: int) -> str:
    """One result in at most ``most`` characters."""
    title = cut(clean_line(hit.title) or "(no title)", min(_TITLE_CHARS, most // 3))
    url = cut(one_line(hit.url).replace(" ", "%20"), min(_URL_CHARS, most // 2))
    head = f"[{number}] {title}\n{url}"
    snippet = clean_line(hit.snippet)
    rest = most - len(head) - 1
    return f"{head}\n{cut(snippet, rest)}" if snippet and rest >= min(_LEAST_WORDS, len(snippet)) else head
