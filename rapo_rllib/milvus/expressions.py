"""Conditions on rows: as text in Milvus' language for a server, as a mask over columns in memory.

Texts are data, and quoted here alone. Milvus' own parameters of expressions are no way out: servers before 2.5 have none, and
pymilvus pastes ``ids=`` raw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})  # all that Milvus knows


def escaped(text: str) -> str:
    """Escape a text that stands between double quotes."""
    return text.translate(_ESCAPES)


def literal(text: str) -> str:
    r"""Quote a text. Example: ``say "no"`` becomes ``"say \"no\""``."""
    return f'"{escaped(text)}"'


def one_of(column: str, texts: Iterable[str], negated: bool = False) -> str:
    """State that a column holds one of the texts, or none of them."""
    return f"{column} {'not in' if negated else 'in'} [{', '.join(map(literal, texts))}]"


class Columns(Protocol):
    """Columns of ``N`` rows."""

    def numbers(self, name: str) -> np.ndarray:
        """Return a column of numbers, ``[N]``."""

    def codes(self, name: str) -> tuple[np.ndarray, dict[str, int]]:
        """Return a column of texts as one number per different text, ``[N]``, and the number of each text."""


@dataclass(frozen=True)
class OneOf:
    """The texts of a column are among ``texts``; ``negated``: are not."""

    column: str
    texts: tuple[str, ...]
    negated: bool = False

    @property
    def text(self) -> str:
        """Milvus' expression."""
        if len(self.texts) == 1:
            return f"{self.column} {'!=' if self.negated else '=='} {literal(self.texts[0])}"
        return one_of(self.column, self.texts, self.negated)

    def mask(self, columns: Columns) -> np.ndarray:
        """Compute which rows fulfil it, ``[N]``."""
        import numpy as np

        codes, code_of = columns.codes(self.column)
        wanted = [code_of[text] for text in self.texts if text in code_of]
        found = codes == wanted[0] if len(wanted) == 1 else np.isin(codes, wanted)
        return ~found if self.negated else found


@dataclass(frozen=True)
class AtLeast:
    """The numbers of a column are ``least`` or more."""

    column: str
    least: float

    @property
    def text(self) -> str:
        """Milvus' expression."""
        return f"{self.column} >= {self.least!r}"

    def mask(self, columns: Columns) -> np.ndarray:
        """Compute which rows fulfil it, ``[N]``."""
        found: np.ndarray = columns.numbers(self.column) >= self.least
        return found


Conditions = tuple[OneOf | AtLeast, ...]  # all of them; none: every row


def expression(conditions: Conditions) -> str:
    """Write conditions in Milvus' language; "" for none."""
    return " and ".join(condition.text for condition in conditions)


def mask_of(conditions: Sequence[OneOf | AtLeast], columns: Columns) -> np.ndarray | None:
    """Compute which rows fulfil all conditions, ``[N]``; None: every row."""
    import numpy as np

    return np.logical_and.reduce([condition.mask(columns) for condition in conditions]) if conditions else None
