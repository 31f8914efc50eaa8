"""All that a buffer holds, read page by page. Flow: ``StepTraceBuffer.reader`` -> export, verify, stats, the leak check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rapo_rllib.buffer.parts import PartRows
from rapo_rllib.buffer.rows import NAMES, trace_of
from rapo_rllib.milvus.handle import Milvus
from rapo_rllib.milvus.schema import VECTOR
from rapo_rllib.types import StepTrace

if TYPE_CHECKING:
    import numpy as np

READ_PAGE = 4096  # step traces with their texts in one answer of Lite, whose time goes with the number of pages
SERVER_READ_PAGE = 500  # of a server, which answers up to 100 MB


class BufferReader:
    """Reads the rows of one collection, in no particular order. Raises ``RetrievalError`` when Milvus does not answer."""

    def __init__(self, milvus: Milvus, collection: str, parts: PartRows) -> None:
        self._milvus, self._collection, self._parts = milvus, collection, parts

    def traces(self) -> Iterator[StepTrace]:
        """Every step trace."""
        for page in self._milvus.pages(self._collection, NAMES, self._page):
            yield from map(trace_of, self._parts.whole(page))

    def with_keys(self) -> Iterator[tuple[list[StepTrace], np.ndarray]]:
        """Every step trace with the vector of its key, in pages: ``N`` traces and their vectors ``[N, D]``."""
        import numpy as np

        for page in self._milvus.pages(self._collection, [*NAMES, VECTOR], self._page):
            vectors = np.asarray([row[VECTOR] for row in page], dtype=np.float32)
            yield [trace_of(row) for row in self._parts.whole(page)], vectors

    def questions(self) -> Iterator[str]:
        """The question of every step trace; of one above 65,535 bytes its beginning."""
        for page in self._milvus.pages(self._collection, ["question"]):
            yield from (row["question"] for row in page)

    def of(self, ids: Sequence[str]) -> list[StepTrace]:
        """The step traces with these ids; those that are not there are left out."""
        return [trace_of(row) for row in self._parts.whole(self._milvus.get(self._collection, ids, NAMES))]

    @property
    def _page(self) -> int:
        return READ_PAGE if self._milvus.is_lite else SERVER_READ_PAGE
