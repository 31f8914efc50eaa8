"""Docstrings cite sections of docs/algorithm.md: each is there, and of what it says."""

from __future__ import annotations

import re

from places import REPOSITORY

CITED = re.compile(r"algorithm\.md sections? (\d+(?:(?:, | to | and )\d+)*)")
HEADINGS = re.findall(r"^## (\d+)\. ", (REPOSITORY / "docs" / "algorithm.md").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_cited_sections_are_there() -> None:
    cited = {
        (file.name, number)
        for file in (REPOSITORY / "rapo_rllib").rglob("*.py")
        for found in CITED.findall(file.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+", found)
    }
    assert len(cited) > 40
    assert {(name, number) for name, number in cited if number not in HEADINGS} == set()


def test_nothing_cites_a_document_that_is_not_here() -> None:
    files = [file for folder in ("rapo_rllib", "benchmarks", "docs") for file in (REPOSITORY / folder).rglob("*.[pm][yd]")]
    assert [file.name for file in files if re.search(r"\b(ALGORITHM|DESIGN) section", file.read_text(encoding="utf-8"))] == []
