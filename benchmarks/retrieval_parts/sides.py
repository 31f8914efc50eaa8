"""The ways to search that are compared. Each opens in a process of its own and answers one embedded query after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np

from rapo_rllib.buffer.rows import NAMES
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.milvus.index import search_effort
from rapo_rllib.milvus.snapshot.graph import GRAPH_FILE, KEYS_FILE
from rapo_rllib.milvus.snapshot.snapshot import EF_SEARCH
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, StepTrace

TOP_K = 1  # as a training asks
Answer = Callable[[np.ndarray, StepTrace], float]  # query [1, D], what it is the key of -> similarity of what was found


@dataclass(frozen=True)
class ByMilvus:
    """A search request to Lite's server, or to a Milvus server, that gives back the row."""

    settings: BufferSettings

    def open(self) -> Answer:
        """Connect."""
        buffer = StepTraceBuffer(self.settings)
        effort = search_effort(self.settings.index, TOP_K)

        def answer(query: np.ndarray, asked: StepTrace) -> float:
            return buffer.milvus.search(buffer.collection, query, TOP_K, NAMES, effort)[0][0]["similarity"]

        return answer


@dataclass(frozen=True)
class Ours:
    """The snapshot: search and row; with ``embedding`` all of ``StepTraceBuffer.retrieve``."""

    settings: BufferSettings
    embedding: bool = False

    def open(self) -> Answer:
        """Map the snapshot."""
        import torch

        torch.set_num_threads(1)  # as in an env runner: Ray gives it one core
        buffer = StepTraceBuffer(self.settings)
        if self.embedding:
            buffer.prepare()

        def embed_and_answer(query: np.ndarray, asked: StepTrace) -> float:
            return buffer.retrieve([HistoryQuery(asked.question, asked.history)], TOP_K)[0][0].similarity

        def answer(query: np.ndarray, asked: StepTrace) -> float:
            return buffer._nearest.find(query, [HistoryQuery("", "")], TOP_K)[0][0]["similarity"]

        return embed_and_answer if self.embedding else answer


@dataclass(frozen=True)
class RawFaiss:
    """The same index in the process's own memory, one thread, no rows: what nothing around faiss would cost."""

    folder: Path

    def open(self) -> Answer:
        """Load the index."""
        keys = faiss.read_index(str(self.folder / KEYS_FILE))
        index, params = keys, None
        if (self.folder / GRAPH_FILE).exists():
            index = faiss.read_index(str(self.folder / GRAPH_FILE))
            index.storage, index.own_fields, index.referenced_objects = keys, False, [keys]
            params = faiss.SearchParametersHNSW(efSearch=EF_SEARCH)
        faiss.omp_set_num_threads(1)

        def answer(query: np.ndarray, asked: StepTrace) -> float:
            return float(index.search(query, TOP_K, params=params)[0][0, 0])

        return answer


Side = ByMilvus | Ours | RawFaiss
