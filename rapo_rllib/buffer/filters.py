"""Filter step traces: a ``TraceFilter`` as Milvus' expression, and as a mask over a snapshot's rows.

Beside the filter stand sources that are shut out, those of weight 0.

    store.py --server--> milvus_expression --> MilvusHandle.search(only=...)
    store.py --Lite----> AllowedRows -------> Snapshot.search(allowed=...)

Both say the same; a test holds them against each other. Questions are compared by their text: data sets number theirs alike.
``hide_answers`` is in neither: see ``shown_answers.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Protocol

from rapo_rllib.buffer.parts import pieces
from rapo_rllib.milvus.expressions import literal, one_of
from rapo_rllib.settings import TraceFilter
from rapo_rllib.types import HistoryQuery

if TYPE_CHECKING:
    import numpy as np

EVERYTHING = TraceFilter()
NOBODY: frozenset[str] = frozenset()


def milvus_expression(chosen: TraceFilter, query: HistoryQuery, without: Set[str] = NOBODY) -> str:
    """The filter for one query in Milvus' language; "" for no restriction. ``without``: sources that are shut out.

    Example: ``TraceFilter(sources=("gpt",), min_reward=0.5)`` gives ``source in ["gpt"] and reward >= 0.5``.
    """
    parts = []
    if chosen.sources is not None:
        parts.append(one_of("source", chosen.sources))
    if without:
        parts.append(one_of("source", sorted(without), negated=True))
    if chosen.min_reward is not None:
        parts.append(f"reward >= {float(chosen.min_reward)!r}")
    if chosen.question != "any":
        parts.append(f"question {'!=' if chosen.question == 'other' else '=='} {literal(pieces(query.question)[0])}")
    return " and ".join(parts)


class Columns(Protocol):
    """The part of a snapshot that masks are made of."""

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers, ``[N]``."""

    def codes(self, name: str) -> tuple[np.ndarray, dict[str, int]]:
        """A column of texts as one number per different text, ``[N]``, and the number of each text."""


class AllowedRows:
    """The filter as masks over the rows of one snapshot. What does not depend on the question is computed once."""

    def __init__(self, chosen: TraceFilter, snapshot: Columns, without: Set[str] = NOBODY) -> None:
        self._chosen, self.snapshot, self.without = chosen, snapshot, without
        self._common = self._compute()

    def of(self, query: HistoryQuery) -> np.ndarray | None:
        """A bool per row, ``[N]``; None: all rows."""
        common = self._common
        if self._chosen.question == "any":
            return common
        codes, code_of = self.snapshot.codes("question")
        code = code_of.get(pieces(query.question)[0], -1)  # -1: no row has this question
        mask = codes == code if self._chosen.question == "same" else codes != code
        return mask if common is None else mask & common

    def _compute(self) -> np.ndarray | None:
        import numpy as np

        masks = []
        if self._chosen.sources is not None:
            masks.append(self._is_by(self._chosen.sources))
        if self.without:
            masks.append(~self._is_by(self.without))
        if self._chosen.min_reward is not None:
            masks.append(self.snapshot.numbers("reward") >= self._chosen.min_reward)
        return np.logical_and.reduce(masks) if masks else None

    def _is_by(self, sources: Iterable[str]) -> np.ndarray:
        import numpy as np

        codes, code_of = self.snapshot.codes("source")
        return np.isin(codes, [code_of[name] for name in sources if name in code_of])
