"""Rows of one collection in memory, for fast retrieval from a Lite path. Flow: ``owner.py`` keeps one table per collection.

Up to ``EXACT_LIMIT`` rows a query is compared with every vector; above, with those in the nearest of faiss' inverted lists.
A row keeps its number as long as its vector stays the same; with another vector it gets a new number, and the old one is dead.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rapo_rllib.milvus.schema import EXACT_LIMIT, VECTOR, Condition, Field

if TYPE_CHECKING:
    import faiss

DIGITS = 6  # decimals of a similarity
CLOSE = 1e-6  # cosines that differ by less count as equal: a sum's last digits depend on what else is in the batch
DEAD = 1000  # a table is made anew once its dead numbers exceed its rows by more than this
TIES = 16  # rows asked of the lists beyond those wanted; if the last is as near as the last one wanted, all rows are compared
# Measured on 170,000 real and mixed keys: 64 of 4 * sqrt(rows) lists find the nearest in 98.6 of 100 cases, in 0.85 ms; 32 of
# 2 * sqrt(rows) in 97.6, as fast; 96 of 4 * sqrt(rows) in 99.8, in 1.24 ms.
LISTS, PROBES = 4, 64
MIN_ALLOWED = 0.2  # if a condition leaves a smaller share of the rows, all of these are compared: the lists may hold too few
BLOCK = 64  # queries that are compared with all keys at a time
TRAINED_ON = 40  # vectors per list that k-means learns from
ROUNDS = 5  # of k-means


class Table:
    """Rows of one collection with their vectors, which are called keys here.

    Args:
        fields: the columns, the primary key first.
        dim: width of the keys.
    """

    def __init__(self, fields: Sequence[Field], dim: int) -> None:
        self.fields, self.dim = list(fields), dim
        self._columns: dict[str, list] = {field.name: [] for field in fields}
        self.ids = self._columns[self.fields[0].name]  # primary keys by row number, dead rows included
        self._number_of: dict[str, int] = {}
        self._keys = np.empty((0, dim), dtype=np.float32)  # with room for more
        self._alive = np.empty(0, dtype=bool)
        self._scale = np.empty(0, dtype=np.float32)  # 1 / length of each key
        self._sorted: list[str] | None = None  # the primary keys
        self._codes: dict[str, tuple[np.ndarray, dict[str, int]]] = {}
        self._lists: faiss.IndexIVFFlat | None = None
        self._learned = 0  # number of rows when the lists were learned

    def __len__(self) -> int:
        return len(self._number_of)

    def put(self, rows: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        """Store rows ``[N]`` with vectors ``[N, D]``; a row replaces the row with the same primary key."""
        key = self.fields[0].name
        for row, vector in zip(rows, np.ascontiguousarray(vectors, dtype=np.float32), strict=True):
            number = self._number_of.get(row[key])
            if number is not None and np.array_equal(self._keys[number], vector):
                for name, values in self._columns.items():
                    values[number] = row[name]
            else:
                if number is not None:
                    self._alive[number] = False
                self._append(row, vector)
        self._sorted = None
        self._codes.clear()

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the rows with these primary keys; a key without a row is no error."""
        self._sorted = None
        for number in (self._number_of.pop(one) for one in ids if one in self._number_of):
            self._alive[number] = False
            for values in self._columns.values():
                values[number] = values[number][:0] if isinstance(values[number], str) else values[number]

    def nearest(
        self, vectors: np.ndarray, top_k: int, only: Sequence[Condition | None] | None, exact: bool
    ) -> list[list[tuple[int, float]]]:
        """Find the rows nearest to each query.

        Args:
            vectors: queries ``[B, D]``.
            top_k: most rows per query.
            only: for each query, the condition that its rows must fulfil; None: no condition.
            exact: compare with every row, however many there are.

        Returns:
            For each query pairs ``(row number, cosine similarity)``, nearest first. Equally near rows get the same similarity
            and are sorted by primary key, so that an answer does not depend on the order of the rows.
        """
        queries = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        found: list[list[tuple[int, float]]] = [[] for _ in queries]
        chosen: dict[Condition | None, list[int]] = {}
        for place, condition in enumerate(only or [None] * len(queries)):
            chosen.setdefault(condition, []).append(place)
        for condition, places in chosen.items():
            allowed = self._allowed(condition)
            for block in (places[start : start + BLOCK] for start in range(0, len(places), BLOCK)):
                hits = self._nearest(queries[block].astype(np.float32), top_k, allowed, exact)
                for place, some in zip(block, hits, strict=True):
                    found[place] = self._ordered(some)[:top_k]
        return found

    def prepare(self) -> None:
        """Learn the inverted lists of a large table, so that the first search does not wait for them."""
        if len(self) > EXACT_LIMIT:
            self._inverted_lists()

    def rows(self, numbers: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the columns ``names`` (the vector, too, if it is named) of the rows ``numbers``, in their order."""
        columns = [self._keys if name == VECTOR else self._columns[name] for name in names]
        return [dict(zip(names, (column[number] for column in columns), strict=True)) for number in numbers]

    def find(self, ids: Sequence[str]) -> list[int]:
        """Find the numbers of the rows with these primary keys; keys without a row are left out."""
        return [self._number_of[one] for one in ids if one in self._number_of]

    def page(self, after: str | None, size: int) -> tuple[list[int], str | None]:
        """Return the numbers of up to ``size`` rows that follow the primary key ``after``, and the next ``after``.

        None stands for the start, and in the answer for the end. By keys, a scan goes on even if rows were reloaded meanwhile.
        """
        if self._sorted is None:
            self._sorted = sorted(self._number_of)
        start = 0 if after is None else bisect.bisect_right(self._sorted, after)
        found = self._sorted[start : start + size]
        return self.find(found), found[-1] if start + size < len(self._sorted) else None

    def compacted(self) -> Table:
        """Return this table or, if most of its numbers are dead, a new one without the dead numbers."""
        if len(self.ids) <= 2 * len(self) + DEAD:
            return self
        table, numbers = Table(self.fields, self.dim), sorted(self._number_of.values())
        table.put(self.rows(numbers, list(self._columns)), self._keys[numbers])
        return table

    def _codes_of(self, name: str) -> tuple[np.ndarray, dict[str, int]]:
        """Encode a column of texts: the code of each row's text ``[N]``, and the code of each distinct text."""
        if name not in self._codes:
            numbers: dict[str, int] = {}
            codes = np.fromiter((numbers.setdefault(text, len(numbers)) for text in self._columns[name]), dtype=np.int64)
            self._codes[name] = codes, numbers
        return self._codes[name]

    def _append(self, row: dict[str, Any], vector: np.ndarray) -> None:
        number = len(self.ids)
        if number == len(self._keys):
            room = max(2 * number, 64)
            self._keys = _wider(self._keys, room)
            self._alive, self._scale = _wider(self._alive, room), _wider(self._scale, room)
        for name, values in self._columns.items():
            values.append(row[name])
        self._keys[number], self._alive[number] = vector, True
        self._scale[number] = 1 / max(float(np.linalg.norm(vector)), 1e-12)
        self._number_of[row[self.fields[0].name]] = number

    def _allowed(self, condition: Condition | None) -> np.ndarray | None:
        """Return for each row whether it is alive and fulfils the condition; None: all do."""
        total = len(self.ids)
        alive = None if len(self) == total else self._alive[:total]
        if condition is None:
            return alive
        codes, code_of = self._codes_of(condition.column)
        mask = (codes == code_of.get(condition.text, -1)) != condition.negated
        return mask if alive is None else mask & alive

    def _nearest(
        self, queries: np.ndarray, wanted: int, allowed: np.ndarray | None, exact: bool
    ) -> list[list[tuple[int, float]]]:
        count = len(self.ids) if allowed is None else int(allowed.sum())
        if count == 0:
            return [[] for _ in queries]
        wanted = min(wanted, count)
        if exact or count <= EXACT_LIMIT or count < MIN_ALLOWED * len(self.ids):
            return self._by_all(queries, wanted, allowed)
        found = self._by_lists(queries, wanted + TIES, allowed)
        for place, hits in enumerate(found):
            if len(hits) < wanted or hits[wanted - 1][1] - hits[-1][1] <= CLOSE:  # too few, or equally near ones are left out
                found[place] = self._by_all(queries[place : place + 1], wanted, allowed)[0]
        return found

    def _ordered(self, hits: list[tuple[int, float]]) -> list[tuple[int, float]]:
        """Sort hits by similarity; equally near hits get the same similarity and are sorted by primary key."""
        found: list[tuple[float, str, int]] = []
        first = np.inf
        for number, similarity in sorted(hits, key=lambda hit: -hit[1]):
            if first - similarity > CLOSE:
                first = similarity
            found.append((-first, self.ids[number], number))
        return [(number, round(-negative, DIGITS)) for negative, _, number in sorted(found)]

    def _by_all(self, queries: np.ndarray, wanted: int, allowed: np.ndarray | None) -> list[list[tuple[int, float]]]:
        total = len(self.ids)
        numbers = None if allowed is None else np.flatnonzero(allowed)
        few = numbers is not None and len(numbers) < MIN_ALLOWED * total
        rows = numbers if few else slice(total)
        similar = queries @ self._keys[rows].T * self._scale[rows]
        if numbers is not None and not few:
            similar[:, ~allowed] = -np.inf  # type: ignore[operator]
        place = similar.shape[1] - min(wanted, similar.shape[1])
        least = np.partition(similar, place, axis=1)[:, place] - CLOSE  # keeps ties with the last row wanted
        found = []
        for row, floor in zip(similar, least, strict=True):
            best = np.flatnonzero(row >= floor)
            found.append(_pairs(numbers[best] if few and numbers is not None else best, row[best]))
        return found

    def _by_lists(self, queries: np.ndarray, wanted: int, allowed: np.ndarray | None) -> list[list[tuple[int, float]]]:
        import faiss

        lists = self._inverted_lists()
        selector = None if allowed is None else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        values, best = lists.search(queries, wanted, params=faiss.SearchParametersIVF(sel=selector, nprobe=PROBES))
        return [_pairs(*one) for one in zip(best, values, strict=True)]

    def _inverted_lists(self) -> faiss.IndexIVFFlat:
        """Return the inverted lists of all rows; they are learned anew once the number of rows has doubled."""
        import faiss

        total = len(self.ids)
        faiss.omp_set_num_threads(1)  # of this thread: a query is too short to share, and other threads search, too
        if self._lists is None or len(self) > 2 * self._learned:
            count = int(LISTS * len(self) ** 0.5)
            self._lists = faiss.IndexIVFFlat(faiss.IndexFlatIP(self.dim), self.dim, count, faiss.METRIC_INNER_PRODUCT)
            self._lists.cp.niter, self._lists.cp.max_points_per_centroid = ROUNDS, TRAINED_ON
            self._lists.cp.min_points_per_centroid = 1  # faiss warns of fewer than 39, which are enough here
            rows = sorted(self._number_of.values(), key=self.ids.__getitem__)  # so that the lists do not depend on their order
            self._lists.train(self._keys[rows] * self._scale[rows, None])
            self._learned = len(rows)
        if self._lists.ntotal < total:
            fresh = slice(self._lists.ntotal, total)
            self._lists.add(self._keys[fresh] * self._scale[fresh, None])
        return self._lists


def _wider(array: np.ndarray, room: int) -> np.ndarray:
    wider = np.zeros((room, *array.shape[1:]), dtype=array.dtype)
    wider[: len(array)] = array
    return wider


def _pairs(numbers: np.ndarray, similarities: np.ndarray) -> list[tuple[int, float]]:
    pairs = zip(numbers.tolist(), similarities.tolist(), strict=True)
    return [(number, value) for number, value in pairs if number >= 0 and value > -np.inf]
