"""README is short, and what it shows is held by the tests of the pages that have the whole; docs/install.md has all extras."""

from __future__ import annotations

import re
import tomllib

from pages import REPOSITORY, blocks

README = REPOSITORY / "README.md"


def test_it_has_at_most_900_words() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 900


def test_its_program_is_a_part_of_the_one_that_a_test_trains() -> None:
    """Line by line and in order: e2e/test_python_page.py runs the whole."""
    (part,) = blocks(README, "python")
    (whole,) = blocks(REPOSITORY / "docs" / "jobs.md", "python")
    lines = iter(whole.splitlines())
    assert [line for line in part.splitlines() if line not in lines] == []


def test_every_extra_is_explained() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (REPOSITORY / "docs" / "install.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([\w-]+)` \|", page, flags=re.MULTILINE))
    assert explained == set(project["optional-dependencies"]) - {"packaged-models"}  # a part of others
