"""docs/walkthrough.py prints what its comments say."""

from __future__ import annotations

import re
import runpy

import pytest
from pages import REPOSITORY

SCRIPT = REPOSITORY / "docs" / "walkthrough.py"


def test_every_printed_number_is_the_one_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    said = re.findall(r"^print\(.*\)  # (.+)$", text, flags=re.MULTILINE)
    assert len(said) == text.count("\nprint(") > 10
    runpy.run_path(str(SCRIPT))
    assert capsys.readouterr().out.splitlines() == said
