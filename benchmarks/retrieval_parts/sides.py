"""The ways to search that are compared. Each opens in a process of its own and answers one embedded query after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import ray

from rapo_rllib.buffer.rows import NAMES
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.milvus.address import is_lite_path
from rapo_rllib.milvus.lite.table import PROBES, Table
from rapo_rllib.milvus.schema import EXACT_LIMIT, Field
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, StepTrace
from retrieval_parts.stored import Sample

TOP_K = 1  # as a training asks
Answer = Callable[[np.ndarray, StepTrace], float]  # query [1, D], what it is the key of -> similarity of what was found


def opened(settings: BufferSettings) -> StepTraceBuffer:
    """The buffer, in a process that is inside the benchmark's Ray where it needs that."""
    if is_lite_path(settings.uri):
        ray.init(ignore_reinit_error=True, logging_level="ERROR", log_to_driver=False)
    return StepTraceBuffer(settings)


@dataclass(frozen=True)
class Searched:
    """Search and row: by the owner of a Lite path, or by a Milvus server."""

    settings: BufferSettings

    def open(self) -> Answer:
        """Connect."""
        buffer = opened(self.settings)

        def answer(query: np.ndarray, asked: StepTrace) -> float:
            return buffer.milvus.search(buffer.collection, query, TOP_K, NAMES)[0][0]["similarity"]

        return answer


@dataclass(frozen=True)
class Ours:
    """All of ``StepTraceBuffer.retrieve``, the embedding included."""

    settings: BufferSettings

    def open(self) -> Answer:
        """Connect, and load the embedder."""
        import torch

        torch.set_num_threads(1)  # as in an env runner: Ray gives it one core
        buffer = opened(self.settings)
        buffer.prepare()

        def answer(query: np.ndarray, asked: StepTrace) -> float:
            return buffer.retrieve([HistoryQuery(asked.question, asked.history)], TOP_K)[0][0].similarity

        return answer


@dataclass(frozen=True)
class RawFaiss:
    """Faiss alone: the index in the process's own memory, one thread, no rows."""

    file: Path

    @classmethod
    def written(cls, sample: Sample, folder: Path) -> RawFaiss:
        """Write the index of a sample's keys."""
        table = Table([Field("id")], sample.keys.shape[1])
        table.put([{"id": trace.id} for trace in sample.traces], sample.keys)
        index = faiss.IndexFlatIP(table.dim)
        if len(table) > EXACT_LIMIT:
            index = table._inverted_lists()
            index.nprobe = PROBES
        else:
            index.add(sample.keys)
        file = folder / f"{len(table)}.faiss"
        faiss.write_index(index, str(file))
        return cls(file)

    def open(self) -> Answer:
        """Load the index."""
        index = faiss.read_index(str(self.file))
        faiss.omp_set_num_threads(1)

        def answer(query: np.ndarray, asked: StepTrace) -> float:
            return float(index.search(query, TOP_K)[0][0, 0])

        return answer


Side = Searched | Ours | RawFaiss
