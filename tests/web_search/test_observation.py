"""What the policy reads: clean, numbered, within its limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.web_search.providers import Hit
from rapo_rllib.web_search.tool import RESULT_CHARS, clean_line, observation


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


@pytest.mark.parametrize(
    ("hit", "shown"),
    [
        (Hit("title", "https://a.org", "short"), "[1] title\nhttps://a.org\nshort"),
        (Hit("<b></b>", "https://a.org/x y", ""), "[1] (no title)\nhttps://a.org/x%20y"),
        (Hit("t" * 200, "https://a.org", "x"), f"[1] {'t' * 147}...\nhttps://a.org\nx"),
    ],
)
def test_a_result(hit: Hit, shown: str) -> None:
    assert observation([hit]) == shown


def test_results_are_numbered_and_cut() -> None:
    shown = observation([Hit(f"title {number}", "https://a.org", "words " * 200) for number in (1, 2)])
    first, second = shown.split("\n\n")
    assert first.startswith("[1] title 1\nhttps://a.org\nwords words") and second.startswith("[2] title 2\n")
    assert RESULT_CHARS - 10 < len(first) == len(second) <= RESULT_CHARS and first.endswith("...")
    assert observation([]) == ""


texts = st.text(max_size=700)


@given(st.lists(st.tuples(texts, texts, texts), max_size=20))
def test_the_limit_holds_and_every_result_is_there(rows: list[tuple[str, str, str]]) -> None:
    shown = observation([Hit(*row) for row in rows])
    assert len(shown) <= (RESULT_CHARS + 2) * len(rows)
    numbers = [line.split("]")[0] for line in shown.splitlines() if line.startswith("[")]
    assert all(f"[{number + 1}" in numbers for number in range(len(rows)))
