"""docs/troubleshooting.md quotes messages of the code: each quoted line is one that the code can say."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from pages import REPOSITORY
from syntax import tree_of

PAGE = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^> `(.+)`$", PAGE, flags=re.MULTILINE)


def said(node: ast.AST) -> str | None:
    """A text as the code writes it, with … where it puts something in; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(?:\.\d+)?[sdrgf]|%\.\d+r", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(said(part) or "…" for part in node.values)
    return None


@cache
def texts() -> list[str]:
    files = (REPOSITORY / "rapo_rllib").rglob("*.py")
    nodes = (node for file in files for node in ast.walk(tree_of(file.read_text(encoding="utf-8"))))
    return [text for node in nodes if (text := said(node))]


def is_said(message: str) -> bool:
    """Whether the pieces of ``message`` between … stand in one text of the code, in this order."""
    pieces = [re.escape(piece.strip()) for piece in message.split("…") if piece.strip(" .,:;()")]
    return any(re.search(".*".join(pieces), text, flags=re.DOTALL) for text in texts())


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_in_the_code(message: str) -> None:
    assert is_said(message)


def test_every_quoted_line_is_marked() -> None:
    assert len(QUOTED) > 50
    assert PAGE.count("\n>") == len(QUOTED)
