"""Links of README and docs to files of the repository lead somewhere; README leads to all pages, jobs.md to all examples."""

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


LISTS = [("README.md", "docs/*.md"), ("README.md", "docs/CITATION.cff"), ("docs/jobs.md", "tuned_examples/*.yaml")]


@pytest.mark.parametrize(("page", "files"), [*LISTS, ("docs/jobs.md", "docs/api/*.md")])
def test_a_page_leads_to_all(page: str, files: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", (REPOSITORY / page).read_text(encoding="utf-8"))
    linked = {(REPOSITORY / page).parent.joinpath(target).resolve() for target in targets if "://" not in target}
    assert {name(path) for path in REPOSITORY.glob(files) if path not in linked} == set()
