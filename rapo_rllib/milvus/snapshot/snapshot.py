"""A Milvus Lite collection in memory, once per machine: what makes retrieval from Lite fast.

Lite answers a search in time that grows with every row, in Python and one request at a time. A snapshot holds keys and rows in
files that every process of the machine maps, so that they share one copy, and the server is not asked at all.

    SnapshotCache.current --version--> files (map, or write first) --> Snapshot.search --row numbers--> Snapshot.rows

Small collections are searched exactly; large ones by the HNSW graph of ``graph.py``, once that is built.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

TIES = 16  # rows looked at beyond those that are wanted: of equally near ones the smallest primary keys are taken
CLOSE = 1e-6  # cosines that differ by less are equal: a sum's last digits depend on what else is in the batch
# Nodes in sight while the graph is walked. Of 170,000 keys (real ones and mixtures of two, which are hard) the nearest was
# found with 128, 512 and 2048 of them in 85, 93 and 96 of 100 cases, in 0.3, 1.2 and 7 ms.
EF_SEARCH = 512
MIN_ALLOWED = 0.2  # a mask that leaves a smaller share of the rows is searched exactly: the walk meets too few of them


Stamp = tuple[int, int, int, int]


def stamps_of(folder: Path, names: Sequence[str]) -> dict[Path, Stamp]:
    """Tell by what the kernel shows that a file was written to; files that are missing are left out."""
    found = {folder / name: _stamp(folder / name) for name in names}
    return {file: stamp for file, stamp in found.items() if stamp is not None}


def _stamp(file: Path) -> Stamp | None:
    try:
        stat = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


class Snapshot:
    """Rows and normalised keys of one version of a collection. Safe to search from several threads.

    Args:
        version: of the collection's content.
        table: the stored columns, ``N`` rows.
        keys: the keys ``[N, D]`` in the same order.
        graph: HNSW over them; None: every search is exact.
        stamps: of the files that all that is mapped from, as they were when they were compared with their sums.
    """

    def __init__(
        self,
        version: str,
        table: pa.Table,
        keys: faiss.IndexFlat,
        graph: faiss.IndexHNSW | None = None,
        stamps: Mapping[Path, Stamp] = MappingProxyType({}),
    ) -> None:
        self.version, self.table, self.keys, self.graph, self.stamps = version, table, keys, graph, dict(stamps)
        self._batches = table.to_batches()
        self._starts = np.cumsum([0, *(len(batch) for batch in self._batches)])
        self._numbers: dict[str, np.ndarray] = {}
        self._codes: dict[str, tuple[np.ndarray, dict[str, int]]] = {}
        self._ranks: np.ndarray | None = None

    def is_touched(self) -> bool:
        """Whether somebody wrote to a mapped file since. One that was deleted stays mapped as it was."""
        return any((now := _stamp(file)) is not None and now != before for file, before in self.stamps.items())

    def __len__(self) -> int:
        return self.table.num_rows

    def search(
        self, vectors: np.ndarray, top_k: int, allowed: Sequence[np.ndarray | None] | None = None
    ) -> list[list[tuple[int, float]]]:
        """The rows nearest to each query.

        Args:
            vectors: normalised, ``[B, D]``.
            top_k: most rows of one answer.
            allowed: for each query a bool mask ``[N]`` of the rows that may be found, or None for all. Queries with the same
                mask (the same object) are answered together.

        Returns:
            For each query ``(row number, cosine similarity)``, nearest first; of equally near ones the smaller primary key, so
            that an answer does not depend on the order in which rows were written.
        """
        found: list[list[tuple[int, float]]] = [[] for _ in vectors]
        queries = np.ascontiguousarray(vectors, dtype=np.float32)
        for mask, chosen in _by_mask(len(queries), allowed):
            for number, hits in zip(chosen, self._search(queries[chosen], top_k + TIES, mask), strict=True):
                found[number] = sorted(hits, key=self._place)[:top_k]
        return found

    def _place(self, hit: tuple[int, float]) -> tuple[int, int]:
        if self._ranks is None:
            ids = self.table.column(0).to_numpy(zero_copy_only=False)
            self._ranks = np.empty(len(ids), dtype=np.int64)
            self._ranks[np.argsort(ids, kind="stable")] = np.arange(len(ids))
        number, similarity = hit
        return -round(similarity / CLOSE), int(self._ranks[number])

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The stored columns, without the key, of these rows, in this order."""
        found = []
        for number in numbers:
            place = int(np.searchsorted(self._starts, number, side="right")) - 1
            found += self._batches[place].slice(int(number - self._starts[place]), 1).to_pylist()
        return found

    def found(
        self, vectors: np.ndarray, top_k: int, allowed: Sequence[np.ndarray | None] | None = None
    ) -> list[list[dict[str, Any]]]:
        """As :meth:`search`, with the rows themselves, each with its ``similarity``: what a search by Milvus gives."""
        nearest = self.search(vectors, top_k, allowed)
        rows = iter(self.rows([number for hits in nearest for number, _ in hits]))
        return [[{**next(rows), "similarity": similarity} for _, similarity in hits] for hits in nearest]

    def numbers(self, name: str) -> np.ndarray:
        """A numeric column ``[N]``."""
        if name not in self._numbers:
            self._numbers[name] = self.table.column(name).to_numpy()
        return self._numbers[name]

    def codes(self, name: str) -> tuple[np.ndarray, dict[str, int]]:
        """A text column as integers ``[N]``, and the integer of every text."""
        if name not in self._codes:
            encoded = self.table.column(name).dictionary_encode().combine_chunks()
            array = encoded if isinstance(encoded, pa.DictionaryArray) else pa.concat_arrays(encoded.chunks)
            texts = {text: code for code, text in enumerate(array.dictionary.to_pylist())}
            self._codes[name] = array.indices.to_numpy(), texts
        return self._codes[name]

    def _search(self, queries: np.ndarray, top_k: int, mask: np.ndarray | None) -> list[list[tuple[int, float]]]:
        count = len(self) if mask is None else int(mask.sum())
        wanted = min(top_k, count)
        if wanted == 0:
            return [[] for _ in queries]
        selector = None if mask is None else faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
        if self.graph is None or count < MIN_ALLOWED * len(self):
            return self._exact(queries, wanted, selector)
        params = faiss.SearchParametersHNSW(efSearch=max(EF_SEARCH, wanted), sel=selector)
        with _one_thread():
            found = _pairs(*self.graph.search(queries, wanted, params=params))
        short = [number for number, hits in enumerate(found) if len(hits) < wanted]  # the walk ended before it met enough
        for number in short:
            found[number] = self._exact(queries[number : number + 1], wanted, selector)[0]
        return found

    def _exact(
        self, queries: np.ndarray, wanted: int, selector: faiss.IDSelectorBitmap | None
    ) -> list[list[tuple[int, float]]]:
        with _one_thread():
            return _pairs(*self.keys.search(queries, wanted, params=faiss.SearchParameters(sel=selector)))


def _by_mask(count: int, allowed: Sequence[np.ndarray | None] | None) -> Iterator[tuple[np.ndarray | None, list[int]]]:
    """Every different mask with the queries that it is for."""
    masks = [None] * count if allowed is None else list(allowed)
    if len(masks) != count:
        raise ValueError(f"got {count} queries and {len(masks)} masks")
    chosen: dict[int, list[int]] = {}
    for number, mask in enumerate(masks):
        chosen.setdefault(id(mask), []).append(number)
    yield from ((masks[numbers[0]], numbers) for numbers in chosen.values())


def _pairs(similarities: np.ndarray, numbers: np.ndarray) -> list[list[tuple[int, float]]]:
    return [
        [(number, value) for number, value in zip(found, values, strict=True) if number >= 0]
        for found, values in zip(numbers.tolist(), similarities.tolist(), strict=True)
    ]


@contextmanager
def _one_thread() -> Iterator[None]:
    """One OpenMP thread for faiss in the calling thread: a query is too short to share, and other runners search beside.

    faiss' wheel brings an OpenMP runtime of its own, and the setting belongs to the calling thread; torch keeps its threads.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
