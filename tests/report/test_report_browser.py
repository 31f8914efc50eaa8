"""The page in a real Chromium: no error, and what people do with it works."""

import shutil

import pytest
from run_folders import write_trial
from test_report_page import poisoned

from rapo_rllib.report.page import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.xdist_group("chromium"),  # one browser at a time
]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))  # with a fresh profile
        yield started
        started.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two trials; one of them holds hostile text in its first iteration."""
    folder = tmp_path_factory.mktemp("run")
    write_trial(folder / "a", iterations=3, params={"retrieval_prob": 0.5})
    poisoned(folder / "a")
    write_trial(folder / "b", iterations=3, params={"retrieval_prob": 1.0}, seed=1)
    write_report(folder)
    return folder


@pytest.fixture
def opened(browser, run):
    """Opens a page; the test fails where it had an error or asked for anything."""
    troubles, contexts = [], []

    def open_page(path=None, width=1200, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else troubles.append(request.url))
        page.goto((path or run / "report.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def count(page) -> tuple[int, int, int]:
    """Trajectories that pass, of how many, and questions, as the page says."""
    words = page.locator("#count").inner_text().replace(",", "").split()
    return int(words[0]), int(words[2]), int(words[4])


def test_curves_are_drawn_compared_and_alone(opened) -> None:
    page = opened()
    titles = page.locator("figure h3").all_inner_texts()
    assert {"Reward", "Accuracy: held-out", "Entropy: before", "Entropy: after", "Retrieval reward"} <= set(titles)
    assert page.locator("figure[data-title=Reward] polyline").count() == 2
    page.select_option("#curve-trial", label="retrieval_prob=1.0")
    titles = page.locator("figure h3").all_inner_texts()
    assert titles[:3] == ["Reward", "Accuracy", "Entropy"] and len(titles) >= 8
    assert page.locator("figure[data-title=Accuracy] polyline").count() == 3
    assert page.locator("figure[data-title=Seconds] rect.bar").count() > 6
    page.select_option("#curve-axis", "seconds")
    assert "over seconds" in page.locator("figure[data-title=Reward] svg").get_attribute("aria-label")
    assert page.locator("body").inner_html().count("NaN") == 0


def test_hover_and_arrow_keys_tell_values(opened) -> None:
    page = opened()
    plot = page.locator("figure[data-title=Reward]")
    plot.locator("svg").hover()
    assert plot.locator(".tip").is_visible() and plot.locator(".tip p").count() == 3
    plot.locator("svg").focus()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    first = plot.locator(".tip").inner_text()
    page.keyboard.press("ArrowRight")
    assert "iteration 1" in first and "iteration 2" in plot.locator(".tip").inner_text()


FILTERS = {
    ("outcome", "correct"): lambda card: "correct" in card,
    ("outcome", "wrong"): lambda card: "wrong" in card,
    ("policy", "hybrid"): lambda card: "hybrid" in card,
    ("policy", "on"): lambda card: "on-policy" in card,
    ("retrieval", "with"): lambda card: "similarity" in card,
    ("retrieval", "without"): lambda card: "similarity" not in card,
    ("end", "length"): lambda card: "end: length" in card,
}


def test_filters(opened) -> None:
    page = opened()
    page.select_option("#trial", label="retrieval_prob=1.0")
    assert count(page) == (36, 36, 9)
    for (control, value), passes in FILTERS.items():
        anything = page.locator(f"#{control}").input_value()
        page.select_option(f"#{control}", value)
        passing, _, questions = count(page)
        assert 0 < passing < 36, (control, value)
        seen = 0
        for _ in range(questions):
            for text, classes in page.eval_on_selector_all(
                "article", "cards => cards.map((card) => [card.innerText, card.className])"
            ):
                seen += passes(text)
                assert passes(text) == ("missed" not in classes), (control, value)
            page.keyboard.press("]")
        assert seen == passing, (control, value)
        page.select_option(f"#{control}", anything)
        page.select_option("#question", "0")


def test_search_marks_and_counts(opened) -> None:
    page = opened()
    page.select_option("#trial", label="retrieval_prob=1.0")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("CASE 2")
    assert count(page) == (12, 36, 3)
    assert page.locator("mark").first.inner_text() == "case 2"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") != "search"
    page.fill("#search", "no such text anywhere")
    assert count(page) == (0, 36, 0) and "No trajectory here" in page.locator("#group").inner_text()


def test_keys_walk_through_trajectories(opened) -> None:
    page = opened()

    def focused() -> str:
        return page.evaluate("document.activeElement.getAttribute('aria-label')")

    questions = page.locator("#question")
    page.keyboard.press("j")
    assert focused() == "trajectory 1"
    page.keyboard.press("ArrowRight")
    assert focused() == "trajectory 2"
    for _ in range(3):
        page.keyboard.press("j")
    assert focused() == "trajectory 1" and questions.input_value() == "1"
    page.keyboard.press("k")
    assert focused() == "trajectory 4" and questions.input_value() == "0"
    page.keyboard.press("]")
    assert questions.input_value() == "1"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.keyboard.press("j")
    assert page.evaluate(outline) == "solid"


def test_hostile_text_stays_text(opened) -> None:
    page = opened()
    page.select_option("#iteration", "1")
    assert "<script>alert(1)" in page.locator("#group").inner_text()
    assert page.locator("#group img, #group script").count() == 0
    page.fill("#search", "<img src=x")
    assert page.locator("mark").first.inner_text() == "<img src=x"


def test_who_wrote_what_is_seen(opened) -> None:
    page = opened()
    card = page.locator("article").first
    assert card.locator(".part.policy").count() == 2 and card.locator(".part.tool").count() == 1
    assert "word_problems/solver" in card.locator(".part.retrieved").inner_text()
    colour = "node => getComputedStyle(node).backgroundColor"
    colours = {card.locator(f".part.{by} pre").first.evaluate(colour) for by in ("policy", "tool", "retrieved")}
    assert len(colours) == 3
    heats = page.eval_on_selector_all(".policy pre", "all => all.map((pre) => Number(pre.style.getPropertyValue('--heat')))")
    assert max(heats) == pytest.approx(0.44) and min(heats) < 0.3
    assert card.locator(".strip rect").count() == 18 + 24


@pytest.mark.parametrize("width", [390, 820])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_sideways_scroll_on_a_phone(opened, width, scheme) -> None:
    page = opened(width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 22, 27)"
    assert dark == (scheme == "dark")


def test_nothing_is_cut_off_on_a_desk(opened) -> None:
    """All columns of the table, and all trajectories of a group, are in sight."""
    page = opened(width=1400)
    for box in (".scroll", ".members"):
        assert page.locator(box).first.evaluate("box => box.scrollWidth <= box.clientWidth"), box
    right_ends = page.eval_on_selector_all("article", "all => all.map((one) => one.getBoundingClientRect().right)")
    assert len(right_ends) >= 4 and max(right_ends) <= 1400


def test_an_empty_run_has_a_page(opened, tmp_path) -> None:
    (tmp_path / "result.json").write_text("")
    page = opened(write_report(tmp_path).path)
    assert "No results yet." in page.locator("#charts").inner_text()
    assert count(page) == (0, 0, 0)
