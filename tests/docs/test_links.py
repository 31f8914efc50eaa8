"""Links of README and docs to files of the repository lead somewhere; README has one to each example and page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import PAGES, REPOSITORY, name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_has_a_target(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    files = [target for target in targets if "://" not in target]
    assert [target for target in files if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("files", ["tuned_examples/*.yaml", "docs/*.md", "docs/CITATION.cff"])
def test_readme_leads_to(files: str) -> None:
    targets = set(re.findall(r"\]\(([^)#\s]+)", (REPOSITORY / "README.md").read_text(encoding="utf-8")))
    assert {name(path) for path in REPOSITORY.glob(files)} - targets == set()
