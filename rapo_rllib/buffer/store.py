"""The Step-Trace Buffer (algorithm.md section 4): step traces by the history they followed.

    build.py --insert--> StepTraceBuffer --retrieve--> the rollout loop, one batch of histories at a time

Key: the embedding of (question, history before the step); value: the step. ``embedder.py`` makes keys, ``milvus`` stores them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rapo_rllib.buffer.drawing import Drawable, random_traces
from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.buffer.maker import MADE_BY, URI_KEY, check_maker, maker_of
from rapo_rllib.buffer.rows import FIELDS, NAMES, check_columns, retrieved_of, trace_of
from rapo_rllib.buffer.shown_answers import nearest_without_answers
from rapo_rllib.buffer.writing import TraceWriter, Written
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.collection import Collection
from rapo_rllib.milvus.handle import milvus_at
from rapo_rllib.milvus.schema import Condition
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, RetrievedTrace, StepTrace

if TYPE_CHECKING:
    import numpy as np

READ_PAGE = 4096  # step traces with their texts per answer of Lite, whose time grows with the number of pages
SERVER_READ_PAGE = 500  # the same for a server, whose answers hold up to 100 MB
STORED = "stored"  # note with the number of step traces: if files were cut off or deleted, Lite still serves the rest


class StepTraceBuffer(Collection):
    """Step traces in one Milvus collection. Cheap to construct; connects and loads its embedder on first use.

    All processes of a Ray cluster may use the same Lite path; without Ray only one process may. A server has no such limit.

    Raises:
        ValueError: ``settings`` holds a wrong URI, embedder, selection or ``top_k``.
    """

    def __init__(self, settings: BufferSettings) -> None:
        milvus = milvus_at(settings.uri, settings.timeout_s, uri_key=URI_KEY)
        super().__init__(milvus, settings.collection)
        self.settings = settings
        self.embedder = Embedder(settings.embedder, settings.pooling, settings.key_recipe, settings.key_history_tokens)
        self.drawable = Drawable(self.milvus, settings)
        self._checked = self._found_whole = False

    def create(self) -> None:
        """Create the collection, unless it exists.

        Raises:
            ValueError: it exists and was made with another embedder, or at another level.
        """
        if not self.exists():
            self._check_whole()
            self.drop_notes()  # left by a drop that was killed halfway
            self.set_note(MADE_BY, maker_of(self.embedder, self.settings.level))
            self.milvus.create(self.collection, FIELDS, self.embedder.dim)
        self._check_maker()

    def insert(self, traces: Iterable[StepTrace], progress: Callable[[int, int], None] | None = None) -> Written:
        """Embed and store step traces, a window of 256 at a time.

        A step trace that is stored already is not embedded again, but gets the facts that are given now (``writing.FACTS``).

        Of a history above 65,535 bytes only the end is stored; a trace whose question or text is longer is left out, with a
        warning. The embedder sorts a window by length, so that short texts are not padded to the longest of them all.

        Args:
            traces: each with a content-derived ``id`` (see ``build.step_traces``).
            progress: called now and then with the numbers of traces seen and of traces added so far.

        Raises:
            ValueError: a trace lacks id or text or is no Unicode, a vector is invalid, or as :meth:`check_embedder`.
            RetrievalError: Milvus does not answer.
        """
        self.check_embedder()
        self.drawable.forget()
        written = TraceWriter(self.milvus, self.collection, self.embedder).write(traces, progress)
        if (count := self.milvus.count(self.collection)) > self._noted():  # a damaged buffer stays damaged until it is whole
            self.set_note(STORED, {"count": count})
        return written

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the step traces with these ids; an id without a trace is no error."""
        if ids:
            self.drawable.forget()
            present = self.milvus.get(self.collection, ids, ["id"])
            self.set_note(STORED, {"count": max(self._noted() - len(present), 0)})  # first: a kill then leaves more than noted
            self.milvus.delete(self.collection, ids)

    def missing(self) -> int:
        """Count the step traces that were stored and are gone because files of the buffer were damaged."""
        noted = self._noted()
        return max(noted - self.count(), 0) if noted else 0

    def prepare(self) -> None:
        """Prepare the first retrieval: connect, load the embedder, and read the rows of a Lite path into memory.

        Raises:
            RetrievalError: Milvus does not answer, or has lost step traces.
            ValueError: the buffer does not exist, or was made with another embedder or at another level.
        """
        self.retrieve([HistoryQuery("question", "")], 1)  # servers of embeddings refuse an empty text

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int | None = None) -> list[list[RetrievedTrace]]:
        """Find for each query the ``top_k`` traces with the nearest keys, nearest first (default: ``settings.top_k``).

        All queries are embedded as one batch and searched together, each among the traces that ``settings.filter`` allows.

        Raises:
            RetrievalError: Milvus does not answer, or has lost step traces.
            ValueError: the buffer does not exist, or was made with another embedder or at another level.
        """
        if not queries:
            return []
        self.check_whole()
        return self.nearest(self.embed(queries), queries, top_k or self.settings.top_k)

    def embed(self, queries: Sequence[HistoryQuery]) -> np.ndarray:
        """Embed queries as vectors ``[B, D]``."""
        return self.embedder.encode([(query.question, query.history) for query in queries])

    def nearest(self, vectors: np.ndarray, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        """Do :meth:`retrieve` for queries that are embedded already, as ``vectors [B, D]``. Raises the same errors.

        Questions are compared by their text, not by id, because data sets use the same ids for different questions.
        """
        self.check_whole()
        chosen, only = self.settings.filter, None
        if chosen.question != "any":
            only = [Condition("question", query.question, negated=chosen.question == "other") for query in queries]

        def find(positions: Sequence[int], count: int) -> list[list[RetrievedTrace]]:
            fulfil = only and [only[at] for at in positions]
            found = self.milvus.search(self.collection, vectors[positions], count, NAMES, self.settings.index, fulfil)
            return [[retrieved_of(row) for row in rows] for rows in found]

        if chosen.hide_answers:
            return nearest_without_answers(find, queries, top_k)
        return find(range(len(queries)), top_k)

    def random_traces(self, queries: Sequence[HistoryQuery], rngs: Sequence[random.Random]) -> list[StepTrace | None]:
        """Draw one step trace per query, uniformly, with the query's generator, from all that :meth:`retrieve` could find.

        See ``drawing.random_traces``. Raises the errors of :meth:`retrieve`.
        """
        self.check_whole()
        return random_traces([self.drawable], queries, rngs)

    def all_traces(self) -> Iterator[StepTrace]:
        """Yield every step trace, in no particular order. No embedder is needed, so the texts survive its loss.

        Raises:
            RetrievalError: Milvus does not answer.
            ValueError: the collection does not exist, or is no Step-Trace Buffer of this version.
        """
        for page in self._pages(NAMES):
            yield from map(trace_of, page)

    def questions(self) -> Iterator[str]:
        """Yield the question of every step trace. Raises as :meth:`all_traces`."""
        for page in self._pages(("question",)):
            yield from (row["question"] for row in page)

    def _pages(self, names: Sequence[str]) -> Iterator[list[dict]]:
        if not self._checked:
            self._check_exists()
            check_columns(self.milvus.shape(self.collection).columns, self.where)
        return self.milvus.pages(self.collection, names, READ_PAGE if self.milvus.is_lite else SERVER_READ_PAGE)

    def fit_index(self) -> None:
        """Build the index that the settings name; ``auto`` chooses by the present size. Worth calling after a large import."""
        self.milvus.set_index(self.collection, self.settings.index)

    def drop(self) -> None:
        """Delete the step traces and the notes about them. After a kill halfway, call drop or create again."""
        self._forget()
        self.milvus.drop(self.collection)
        if self._noted():  # traces that were dropped are not missing
            self.set_note(STORED, {"count": 0})
        self.drop_notes()

    def close(self) -> None:
        """Disconnect. The next call connects again."""
        self._forget()
        super().close()

    def check_embedder(self) -> None:
        """Raise ``ValueError`` if the buffer does not exist, or was made with another embedder or at another level."""
        if not self._checked:
            self._check_exists()
            self._check_maker()

    def check_whole(self) -> None:
        """Do :meth:`check_embedder`, and raise ``RetrievalError`` if step traces are gone, as when files were damaged."""
        self.check_embedder()
        if not self._found_whole:
            self._check_whole()
            self._found_whole = True

    def _forget(self) -> None:
        self._checked = self._found_whole = False
        self.drawable.forget()

    def _noted(self) -> int:
        return int((self.note(STORED) or {}).get("count", 0))

    def _check_whole(self) -> None:
        if missing := self.missing():
            raise RetrievalError(
                f"step_trace_buffer: {missing} of {self._noted()} step traces in collection {self.where} are gone: its files "
                "are damaged. Restore a copy, import the same traces again, which adds what is missing, or drop the buffer and "
                "build it anew."
            )

    def _check_maker(self) -> None:
        check_maker(self.note(MADE_BY), self.embedder, self.settings.level, self.where)
        check_columns(self.milvus.shape(self.collection).columns, self.where)
        self._checked = True

    def _check_exists(self) -> None:
        if not self.exists():
            raise ValueError(
                f"step_trace_buffer: there is no collection {self.where}. Set step_trace_buffer.traces to "
                "the source to build it from, or correct uri and collection."
            )
