"""Other values under the same keys: the policy wrote a trace again. Flow: ``buffer_upkeep.py`` -> here -> Milvus."""

from __future__ import annotations

from collections.abc import Sequence

from rapo_rllib.buffer.parts import PartRows
from rapo_rllib.buffer.rows import row_of
from rapo_rllib.buffer.store import WRITE_BATCH, StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.schema import VECTOR
from rapo_rllib.types import StepTrace

READ_BATCH = 512  # vectors of one answer


def rewrite(buffer: StepTraceBuffer, traces: Sequence[StepTrace]) -> None:
    """Store step traces anew that are in the buffer, with the values that they have now. Nothing is embedded again.

    Raises:
        RetrievalError: Milvus does not answer, or one of them is not there any more; those before it are written.
    """
    import numpy as np

    if not traces:
        return
    buffer.mark_changed(rewritten=True)
    parts = PartRows(buffer.milvus, buffer.collection)
    for start in range(0, len(traces), READ_BATCH):
        batch = traces[start : start + READ_BATCH]
        found = buffer.milvus.get(buffer.collection, [trace.id for trace in batch], ["id", VECTOR])
        vectors = {row["id"]: row[VECTOR] for row in found}
        if gone := [trace.id for trace in batch if trace.id not in vectors]:
            raise RetrievalError(f"{len(gone)} step traces of {buffer.collection!r} at {buffer.uri} are gone, as {gone[0]!r}")
        for first in range(0, len(batch), WRITE_BATCH):
            some = batch[first : first + WRITE_BATCH]
            keys = np.asarray([vectors[trace.id] for trace in some], dtype=np.float32)
            buffer.milvus.upsert(buffer.collection, parts.put_aside([row_of(trace) for trace in some]), keys)
    buffer.mark_changed(rewritten=True)
