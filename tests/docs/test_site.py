"""The site of docs/: it builds without a warning, its navigation has every page, and the pages of the Python API are filled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import REPOSITORY

MEASURED = ("RESULTS", "LEARNING", "learning_plan", "equal_traces_plan")
ADDED = {"index.md", *(f"benchmarks/{page}.md" for page in MEASURED)}  # by docs/site_pages.py


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return folder


def leaves(node: Any) -> Iterator[str]:
    """The pages below a part of the navigation."""
    if isinstance(node, str):
        yield node
    else:
        for child in node.values() if isinstance(node, dict) else node:
            yield from leaves(child)


def navigation() -> list[str]:
    return list(leaves(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))


def test_the_navigation_holds_every_page_once() -> None:
    docs = REPOSITORY / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert sorted(navigation()) == sorted(pages | ADDED)


def test_each_page_is_there_and_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    filled = {entry["location"].split("#")[0] for entry in index if entry["text"]}
    pages = {page.removesuffix(".md") + ".html" for page in navigation()}
    assert {page for page in pages if not (site / page).is_file()} == set()
    assert pages - filled == set()
    assert any("retriev" in entry["text"] for entry in index)


def test_pages_of_the_python_api_hold_every_equation_and_no_name_twice(site: Path) -> None:
    """That a name which a page asks for is there, the strict build checks."""
    pages = (REPOSITORY / "docs" / "api").glob("*.md")
    shown = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("::: ")]
    assert len(shown) == len(set(shown))
    equations = (site / "api" / "objective.html").read_text(encoding="utf-8")
    files = {path.stem: path.read_text() for path in (REPOSITORY / "rapo_rllib" / "objective").glob("*.py")}
    for module in set(files) - {"__init__", "inputs", "loss_metrics"}:
        names = re.findall(r"^def ([a-z]\w*)", files[module], flags=re.MULTILINE)
        assert names
        assert [name for name in names if f'id="rapo_rllib.objective.{module}.{name}"' not in equations] == []


def test_links_inside_the_site_lead_somewhere(site: Path) -> None:
    lost = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links begin at the root of the host
            continue
        targets = re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8"))
        inside = [target for target in targets if not re.match(r"[a-z]+:", target)]
        lost += [(page.name, target) for target in inside if not (page.parent / target).exists()]
    assert lost == []
    assert 'href="benchmarks/RESULTS.html"' in (site / "buffer.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loads = re.compile(r'<(?:script|img|iframe)[^>]*\ssrc="https?:[^"]*|<link[^>]*\shref="https?:[^"]*')
    assert [found for page in site.rglob("*.html") for found in loads.findall(page.read_text(encoding="utf-8"))] == []


GLUED = re.compile(r"^(?![-*|#<\s]|\d+\. |```).*\n(?:[-*|]|\d+\.) .*", re.MULTILINE)


def test_a_list_or_table_begins_behind_an_empty_line() -> None:
    """GitHub takes one that does not; the site would show it as running text."""
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")), *(REPOSITORY / "benchmarks").glob("*.md")]
    texts = {page.name: re.sub(r"^```.*?^```", "```", page.read_text(), flags=re.DOTALL | re.MULTILINE) for page in pages}
    assert [(name, match[0]) for name, text in texts.items() for match in GLUED.finditer(text)] == []
