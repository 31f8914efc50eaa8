"""The Step-Trace Buffer (ALGORITHM section 4): step traces by the history they followed.

    build.py --insert--> StepTraceBuffer --retrieve--> the rollout loop, one batch of histories at a time

Key: the embedding of (question, history before the step); value: the step. ``embedder.py`` makes keys, ``milvus.py`` stores
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from rapo_rllib.buffer.embedder import BATCH_SIZE, Embedder
from rapo_rllib.buffer.milvus import MAX_VARCHAR_BYTES, Field, MilvusHandle, checked_uri, index_kind
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, RetrievedTrace, StepTrace

FIELDS = (
    Field("id", max_bytes=256),
    Field("question"),
    Field("history"),
    Field("text"),
    Field("reward", "DOUBLE"),
    Field("question_id", max_bytes=1024),
    Field("step_index", "INT64"),
    Field("source", max_bytes=1024),
)
NAMES = tuple(field.name for field in FIELDS)
NOTE_FIELDS = (Field("id", max_bytes=256), Field("value"))
SELECTIONS = ("nearest", "best_reward")


class StepTraceBuffer:
    """Step traces in one Milvus collection. Cheap to construct and to pickle; connects and loads its embedder on first use.

    Any number of processes on a machine may use the same Lite path, any number of machines the same server.

    Raises:
        ValueError: ``settings`` holds a wrong URI, embedder, selection or ``top_k``.
    """

    def __init__(self, settings: BufferSettings) -> None:
        check_settings(settings)
        self.settings = settings
        self.collection = settings.collection
        self.milvus = MilvusHandle(settings.uri, settings.token, settings.db_name, settings.timeout_s)
        self.embedder = Embedder(settings.embedder)
        self._checked = False

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_checked": False}

    @property
    def uri(self) -> str:
        """The URI in use; a Lite path is absolute."""
        return self.milvus.uri

    def exists(self) -> bool:
        """Whether the collection exists."""
        return self.milvus.exists(self.collection)

    def create(self) -> None:
        """Create the collection, unless it exists.

        Raises:
            ValueError: it exists and was made with another embedder.
        """
        if not self.exists():
            self.milvus.drop(self._notes)  # of a collection that was dropped halfway
            self.set_note("embedder", self._embedder_note)
            self.milvus.create(self.collection, FIELDS, self.embedder.dim)
        self._check_embedder()

    def insert(self, traces: Iterable[StepTrace], progress: Callable[[int], None] | None = None) -> int:
        """Embed and store step traces, in batches of 64. What is already stored is not embedded again.

        Of a history above 65,535 bytes the end is stored (the key needs no more, and only ``text`` is ever inserted).

        Args:
            traces: each with a content-derived ``id`` (see ``build.step_traces``).
            progress: told the number of traces seen so far, after every batch.

        Returns:
            Number of traces that were not there before.

        Raises:
            ValueError: a trace without id or text, two traces with one id, a ``text`` above 65,535 bytes.
            RetrievalError: Milvus does not answer.
        """
        self._open()
        seen = added = 0
        for batch in _batches(traces, BATCH_SIZE):
            unique = _unique(batch)
            present = {row["id"] for row in self.milvus.get(self.collection, list(unique), ["id"])}
            fresh = [trace for trace in unique.values() if trace.id not in present]
            vectors = self.embedder.encode([(trace.question, trace.history) for trace in fresh])
            self.milvus.upsert(self.collection, [_row(trace) for trace in fresh], vectors)
            seen, added = seen + len(batch), added + len(fresh)
            if progress:
                progress(seen)
        return added

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int | None = None) -> list[list[RetrievedTrace]]:
        """For each query the ``top_k`` (default: the settings') traces with the nearest keys, nearest first.

        All queries are embedded as one batch and searched by one request.

        Raises:
            RetrievalError: Milvus does not answer.
            ValueError: the buffer does not exist or was made with another embedder.
        """
        if not queries:
            return []
        self._open()
        vectors = self.embedder.encode([(query.question, query.history) for query in queries])
        found = self.milvus.search(self.collection, vectors, top_k or self.settings.top_k, NAMES)
        return [[_retrieved(row) for row in rows] for rows in found]

    def count(self) -> int:
        """Number of step traces; 0 if the collection does not exist."""
        return self.milvus.count(self.collection) if self.exists() else 0

    def fit_index(self) -> None:
        """Choose the index for the present size: exact while small. Worth calling after a large import."""
        self.milvus.set_index(self.collection, index_kind(self.count()))

    def drop(self) -> None:
        """Delete the step traces and the notes about them."""
        self._checked = False
        self.milvus.drop(self._notes)
        self.milvus.drop(self.collection)

    def close(self) -> None:
        """Disconnect. The next call connects again."""
        self._checked = False
        self.milvus.close()

    def note(self, name: str) -> dict | None:
        """What :meth:`set_note` stored under ``name``."""
        if not self.milvus.exists(self._notes):
            return None
        rows = self.milvus.get(self._notes, [name], ["value"])
        return json.loads(rows[0]["value"]) if rows else None

    def set_note(self, name: str, value: dict) -> None:
        """Store a small JSON object beside the step traces."""
        import numpy as np

        self.milvus.create(self._notes, NOTE_FIELDS, 2)
        self.milvus.upsert(self._notes, [{"id": name, "value": json.dumps(value)}], np.ones((1, 2), dtype=np.float32))

    @property
    def _notes(self) -> str:
        return f"{self.collection}_notes"

    def _open(self) -> None:
        if self._checked:
            return
        if not self.exists():
            raise ValueError(
                f"step_trace_buffer: there is no collection {self.collection!r} at {self.uri}. Set step_trace_buffer.traces to "
                "what it shall be built from, or correct uri and collection."
            )
        self._check_embedder()

    @property
    def _embedder_note(self) -> dict:
        return {"name": self.embedder.name, "fingerprint": self.embedder.fingerprint}

    def _check_embedder(self) -> None:
        stored = self.note("embedder")
        if stored is None:
            raise ValueError(
                f"step_trace_buffer.collection: {self.collection!r} at {self.uri} is no Step-Trace Buffer of this package; "
                "name another collection"
            )
        if stored["fingerprint"] != self.embedder.fingerprint:
            raise ValueError(
                f"step_trace_buffer.embedder: {self.collection!r} at {self.uri} was embedded by {stored['name']!r} "
                f"({stored['fingerprint']}), which is not {self.embedder.name!r} as it is here ({self.embedder.fingerprint}). "
                "Name that embedder, or another collection."
            )
        self._checked = True


def check_settings(settings: BufferSettings) -> None:
    """Refuse values that could only fail later. Raises ``ValueError`` naming the key."""
    checked_uri(settings.uri)
    if settings.selection not in SELECTIONS:
        raise ValueError(f"step_trace_buffer.selection must be one of {SELECTIONS}, got {settings.selection!r}")
    if settings.top_k < 1:
        raise ValueError(f"step_trace_buffer.top_k must be at least 1, got {settings.top_k}")
    if settings.timeout_s <= 0:
        raise ValueError(f"step_trace_buffer.timeout_s must be positive, got {settings.timeout_s}")
    if not settings.collection.isidentifier():
        raise ValueError(f"step_trace_buffer.collection must be letters, digits and underscores, got {settings.collection!r}")


def select(hits: Sequence[RetrievedTrace], selection: str = "nearest") -> RetrievedTrace | None:
    """Choose among the ``top_k`` of one query (given nearest first): the nearest, or the one with the highest reward.

    ``best_reward`` is the released code's rule (ALGORITHM section 9): None if no reward is positive; of equal ones the nearest.
    """
    if selection not in SELECTIONS:
        raise ValueError(f"step_trace_buffer.selection must be one of {SELECTIONS}, got {selection!r}")
    if not hits:
        return None
    if selection == "nearest":
        return hits[0]
    best = max(hits, key=lambda hit: hit.trace.reward)
    return best if best.trace.reward > 0 else None


def _batches(traces: Iterable[StepTrace], size: int) -> Iterator[list[StepTrace]]:
    iterator = iter(traces)
    while batch := list(islice(iterator, size)):
        yield batch


def _unique(batch: Sequence[StepTrace]) -> dict[str, StepTrace]:
    unique: dict[str, StepTrace] = {}
    for trace in batch:
        if not trace.id or not trace.text:
            raise ValueError(f"a step trace needs an id and a text: got id {trace.id!r}, text {trace.text[:80]!r}")
        if unique.setdefault(trace.id, trace).text != trace.text:
            raise ValueError(f"two different step traces have the id {trace.id!r}; derive ids from the content (trace_id)")
    return unique


def _row(trace: StepTrace) -> dict:
    row = {name: getattr(trace, name) for name in NAMES}
    encoded = trace.history.encode()
    if len(encoded) > MAX_VARCHAR_BYTES:
        row["history"] = encoded[-MAX_VARCHAR_BYTES:].decode(errors="ignore")
    return row


def _retrieved(row: dict) -> RetrievedTrace:
    similarity = min(1.0, max(-1.0, row["similarity"]))  # rounding may leave the interval
    return RetrievedTrace(StepTrace(**{name: row[name] for name in NAMES}), similarity)
