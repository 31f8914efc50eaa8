"""A condition on rows, for a server in Milvus' language.

Texts are data, and quoted here alone. Milvus' own parameters of expressions are no way out: servers before 2.5 have none, and
pymilvus pastes ``ids=`` raw.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})  # all that Milvus knows


def escaped(text: str) -> str:
    """Escape a text that stands between double quotes."""
    return text.translate(_ESCAPES)


def literal(text: str) -> str:
    r"""Quote a text. Example: ``say "no"`` becomes ``"say \"no\""``."""
    return f'"{escaped(text)}"'


def one_of(column: str, texts: Iterable[str]) -> str:
    """State that a column holds one of the texts."""
    return f"{column} in [{', '.join(map(literal, texts))}]"


@dataclass(frozen=True)
class Condition:
    """A column holds ``text``; ``negated``: another one."""

    column: str
    text: str
    negated: bool = False

    @property
    def expression(self) -> str:
        """The condition in Milvus' language."""
        return f"{self.column} {'!=' if self.negated else '=='} {literal(self.text)}"
