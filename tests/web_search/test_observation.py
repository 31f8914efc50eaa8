"""What the policy reads: clean, numbered, within its limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.web_search.observation import LEAST_CHARS, clean_line, cut, observation
from rapo_rllib.web_search.provider import Found, Hit


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("The <strong>Loire</strong> rises &amp; falls", "The Loire rises & falls"),
        ("<b class='hit'>a</b><br/>b <EM>c</EM>", "ab c"),
        ("use &lt;b&gt; for bold, List<String> and a < b", "use <b> for bold, List<String> and a < b"),
        (" two\n\tlines\r\n\u2028three ", "two lines three"),
        ("bell\x07 nul\x00 escape\x1b[31m half\ud800 hidden\u200b\u202eturned", "bell nul escape[31m half hiddenturned"),
        ("Rhône 里昂 👩‍🔬", "Rhône 里昂 👩‍🔬"),
    ],
)
def test_clean_text(text: str, clean: str) -> None:
    assert clean_line(text) == clean


def hit(number: int, snippet: str = "words " * 200) -> Hit:
    return Hit(f"title {number}", f"https://example.org/{number}", snippet)


def test_results_share_the_room_and_pass_on_what_they_leave() -> None:
    shown = observation(Found((hit(1, "short"), hit(2), hit(3))), 600)
    first, second, third = shown.split("\n\n")
    assert first == "[1] title 1\nhttps://example.org/1\nshort"
    assert second.startswith("[2] title 2\nhttps://example.org/2\nwords words") and second.endswith("...")
    assert 240 < len(second) <= 280 and 240 < len(third) <= 280
    assert 560 < len(shown) <= 600


def test_without_title_or_snippet() -> None:
    assert observation(Found((Hit("<b></b>", "https://a.org/x y", ""),)), 600) == "[1] (no title)\nhttps://a.org/x%20y"
    assert observation(Found(), 600) == ""
    assert observation(Found(answer="only <b>this</b>"), 600) == "Answer: only this"


texts = st.text(max_size=700)


@given(st.lists(st.tuples(texts, texts, texts), max_size=20), texts, st.integers(0, 500))
def test_the_limit_holds_and_every_result_is_there(rows: list[tuple[str, str, str]], answer: str, more: int) -> None:
    most = LEAST_CHARS * max(len(rows), 1) + more
    shown = observation(Found(tuple(Hit(*row) for row in rows), answer), most)
    assert len(shown) <= most
    numbers = [line.split("]")[0] for line in shown.splitlines() if line.startswith("[")]
    for number in range(1, len(rows) + 1):
        assert f"[{number}" in numbers


@pytest.mark.parametrize(("text", "most", "short"), [("abc", 3, "abc"), ("abcd", 3, "..."), ("ab cdefg", 6, "ab...")])
def test_a_cut_is_marked(text: str, most: int, short: str) -> None:
    assert cut(text, most) == short
