"""Write expressions of Milvus' language about texts, which are data: the one place where they are quoted.

Milvus' own parameters of expressions are no way out: servers before 2.5 and Lite have none, and pymilvus pastes ``ids=`` raw.
"""

from __future__ import annotations

from collections.abc import Iterable

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})  # all that Lite knows


def escaped(text: str) -> str:
    """Escape a text that stands between double quotes."""
    return text.translate(_ESCAPES)


def literal(text: str) -> str:
    r"""Quote a text. Example: ``say "no"`` becomes ``"say \"no\""``."""
    return f'"{escaped(text)}"'


def one_of(column: str, texts: Iterable[str], negated: bool = False) -> str:
    """State that a column holds one of the texts, or none of them."""
    return f"{column} {'not in' if negated else 'in'} [{', '.join(map(literal, texts))}]"
