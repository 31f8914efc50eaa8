"""The rows nearest to a batch of queries, of those that the filter allows. Flow: ``store.py`` -> here -> snapshot or Milvus."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from rapo_rllib.buffer.filters import EVERYTHING, NOBODY, AllowedRows, milvus_expression
from rapo_rllib.buffer.rows import NAMES
from rapo_rllib.milvus.handle import MilvusHandle
from rapo_rllib.milvus.index import EXACT_LIMIT, search_effort
from rapo_rllib.milvus.snapshot.cache import SnapshotCache
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery

if TYPE_CHECKING:
    import numpy as np

    from rapo_rllib.milvus.snapshot.snapshot import Snapshot


class NearestRows:
    """Searches one collection: a Lite path's by a snapshot in memory, a server's by the server."""

    def __init__(self, milvus: MilvusHandle, settings: BufferSettings) -> None:
        self._milvus, self._settings, self._collection = milvus, settings, settings.collection
        self.snapshots = SnapshotCache(milvus, settings.collection, sys.maxsize if settings.index == "exact" else EXACT_LIMIT)
        self._allowed: AllowedRows | None = None  # of the snapshot at hand

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_allowed": None}

    def snapshot(self, dim: int) -> Snapshot | None:
        """The snapshot of a Lite path's keys as they are now; None where Milvus itself is to search."""
        return None if self._settings.index == "hnsw" else self.snapshots.current(dim)

    def find(
        self, vectors: np.ndarray, queries: Sequence[HistoryQuery], top_k: int, without: Set[str] = NOBODY
    ) -> list[list[dict]]:
        """The rows nearest to each of ``vectors [B, D]``, none of the sources ``without``: with ``similarity``, best first."""
        snapshot = self.snapshot(vectors.shape[1])
        if snapshot is None:
            return self._by_milvus(vectors, queries, top_k, without)
        if self._settings.filter == EVERYTHING and not without:
            return snapshot.found(vectors, top_k)
        allowed = self._allowed
        if allowed is None or allowed.snapshot is not snapshot or allowed.without != without:
            allowed = self._allowed = AllowedRows(self._settings.filter, snapshot, without)
        return snapshot.found(vectors, top_k, [allowed.of(query) for query in queries])

    def _by_milvus(
        self, vectors: np.ndarray, queries: Sequence[HistoryQuery], top_k: int, without: Set[str]
    ) -> list[list[dict]]:
        """One request per different filter: one in all, unless the filter is about the question that asks."""
        effort = search_effort(self._settings.index, top_k)
        positions: dict[str, list[int]] = {}
        for position, query in enumerate(queries):
            positions.setdefault(milvus_expression(self._settings.filter, query, without), []).append(position)
        found: list[list[dict]] = [[] for _ in queries]
        for only, places in positions.items():
            rows = self._milvus.search(self._collection, vectors[places], top_k, NAMES, effort, only)
            for place, hits in zip(places, rows, strict=True):
                found[place] = hits
        return found
