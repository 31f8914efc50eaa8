"""Write step traces into a collection, a window of 256 at a time. Flow: ``StepTraceBuffer.insert`` -> here -> ``milvus``.

    question or text above 65,535 bytes    -> left out
    not stored yet                         -> embedded, added
    stored, and other facts are given now  -> rewritten with the stored vector
    stored, with the same facts            -> left as it is

One query per window tells these cases apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.buffer.rows import NAMES, check_trace, fits, row_of
from rapo_rllib.milvus.handle import Milvus
from rapo_rllib.milvus.schema import VECTOR
from rapo_rllib.traces.rows import windows
from rapo_rllib.types import StepTrace

logger = logging.getLogger(__name__)

WINDOW = 256  # step traces that are embedded together: the most that a kill loses
WRITE_BATCH = 64  # step traces of one request: a server takes 64 MB
FACTS = ("reward", "question_id", "step_index", "weight_version")  # fields that the id of a step trace does not depend on
Progress = Callable[[int, int], None]


@dataclass
class Written:
    """The outcome of writing step traces."""

    seen: int = 0
    added: int = 0
    updated: int = 0


class TraceWriter:
    """Writer to one collection. Raises ``RetrievalError`` when Milvus does not answer."""

    def __init__(self, milvus: Milvus, collection: str, embedder: Embedder) -> None:
        self._milvus, self._collection, self._embedder = milvus, collection, embedder

    def write(self, traces: Iterable[StepTrace], progress: Progress | None) -> Written:
        """Add the traces that are not stored yet, and update the facts of those that are.

        Raises:
            ValueError: see ``StepTraceBuffer.insert``.
        """
        done, too_long = Written(), 0
        for whole_window in windows(traces, WINDOW):
            window = [trace for trace in whole_window if fits(trace)]
            too_long += len(whole_window) - len(window)
            for trace in window:
                check_trace(trace)
            unique = {trace.id: trace for trace in window}  # of traces with one id the last counts, as between windows
            known = {row["id"]: row for row in self._milvus.get(self._collection, list(unique), ["id", *FACTS])}
            fresh = [trace for trace in unique.values() if trace.id not in known]
            done.seen += len(whole_window) - len(fresh)
            self._update([trace for key, trace in unique.items() if key in known and _differs(trace, known[key])], done)
            if fresh:
                self._add(fresh, done, progress)
            elif progress:
                progress(done.seen, done.added)
        if too_long:
            logger.warning("left out %d step traces whose question or text is above 65,535 bytes", too_long)
        return done

    def _add(self, fresh: Sequence[StepTrace], done: Written, progress: Progress | None) -> None:
        vectors = self._embedder.encode([(trace.question, trace.history) for trace in fresh])
        for start in range(0, len(fresh), WRITE_BATCH):
            batch = [row_of(trace) for trace in fresh[start : start + WRITE_BATCH]]
            self._milvus.upsert(self._collection, batch, vectors[start : start + WRITE_BATCH])
            done.seen, done.added = done.seen + len(batch), done.added + len(batch)
            if progress:
                progress(done.seen, done.added)

    def _update(self, changed: Sequence[StepTrace], done: Written) -> None:
        """Update the facts of stored rows, and keep their vectors."""
        import numpy as np

        facts = {trace.id: {name: getattr(trace, name) for name in FACTS} for trace in changed}
        ids = list(facts)
        for start in range(0, len(ids), WRITE_BATCH):
            found = self._milvus.get(self._collection, ids[start : start + WRITE_BATCH], [*NAMES, VECTOR])
            rows = [{name: row[name] for name in NAMES} | facts[row["id"]] for row in found]
            vectors = np.asarray([row[VECTOR] for row in found], dtype=np.float32)
            self._milvus.upsert(self._collection, rows, vectors)
            done.updated += len(rows)


def _differs(trace: StepTrace, row: dict) -> bool:
    return any(getattr(trace, name) != row[name] for name in FACTS)
