"""Rows and keys of one collection in memory: what makes retrieval from a Lite path fast. Flow: ``owner.py`` keeps one each.

Up to ``EXACT_LIMIT`` rows a query is compared with every key; above, with those of the nearest of faiss' inverted lists.
A row keeps its number for good: a row with another key is a new one, and the old number is dead.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rapo_rllib.milvus.schema import EXACT_LIMIT, VECTOR, Condition, Field

if TYPE_CHECKING:
    import faiss

DIGITS = 6  # of a similarity
CLOSE = 1e-6  # cosines that differ by less are equal: a sum's last digits depend on what else is in the batch
DEAD = 1000  # numbers of rows that are gone, beside as many as there are rows, before a table is made anew
TIES = 16  # rows that the lists are asked for beyond those that are wanted, and more as long as all are equally near
# Of 170,000 real and mixed keys the nearest was found in 98.6 of 100 cases with 64 of 4 * sqrt(rows) lists, in 0.85 ms; in 97.6
# with 32 of 2 * sqrt(rows), as fast; in 99.8 with 96 of 4 * sqrt(rows), in 1.24 ms.
LISTS, PROBES = 4, 64
MIN_ALLOWED = 0.2  # where conditions leave a smaller share, all that is left is compared: the lists may hold too few of it
BLOCK = 64  # queries that are compared with all keys at a time
TRAINED_ON = 40  # keys per list
ROUNDS = 5  # of k-means


class Table:
    """Rows of one collection with their keys.

    Args:
        fields: the columns, the primary key first.
        dim: width of the keys.
    """

    def __init__(self, fields: Sequence[Field], dim: int) -> None:
        self.fields, self.dim = list(fields), dim
        self._columns: dict[str, list] = {field.name: [] for field in fields}
        self.ids = self._columns[self.fields[0].name]  # by row number, dead rows included
        self._number_of: dict[str, int] = {}
        self._keys = np.empty((0, dim), dtype=np.float32)  # with room for more
        self._alive = np.empty(0, dtype=bool)
        self._scale = np.empty(0, dtype=np.float32)  # 1 / length of each key
        self._sorted: list[str] | None = None  # the keys
        self._codes: dict[str, tuple[np.ndarray, dict[str, int]]] = {}
        self._lists: faiss.IndexIVFFlat | None = None
        self._learned = 0  # rows when the lists were learned

    def __len__(self) -> int:
        return len(self._number_of)

    def put(self, rows: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        """Store rows ``[N]`` with vectors ``[N, D]``; one with a known key takes the place of that row."""
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
        """Delete the rows with these keys; those that are not there are none the less gone."""
        self._sorted = None
        for number in (self._number_of.pop(one) for one in ids if one in self._number_of):
            self._alive[number] = False
            for values in self._columns.values():
                values[number] = values[number][:0] if isinstance(values[number], str) else values[number]

    def nearest(
        self, vectors: np.ndarray, top_k: int, only: Sequence[Condition | None] | None, exact: bool
    ) -> list[list[tuple[int, float]]]:
        """Return the rows nearest to each query.

        Args:
            vectors: queries ``[B, D]``.
            top_k: most rows of one answer.
            only: for each query the condition that its rows fulfil; None: there is none.
            exact: compare with every row, however many there are.

        Returns:
            For each query ``(row number, cosine similarity)``, nearest first; of equally near ones, which have the same
            similarity, the smaller primary key. So an answer does not depend on the order of the rows.
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
        """Do what the first search of a large table would wait for."""
        if len(self) > EXACT_LIMIT:
            self._inverted_lists()

    def rows(self, numbers: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the columns ``names``, the vector among them if it is named, of these rows, in this order."""
        columns = [self._keys if name == VECTOR else self._columns[name] for name in names]
        return [dict(zip(names, (column[number] for column in columns), strict=True)) for number in numbers]

    def find(self, ids: Sequence[str]) -> list[int]:
        """Return the numbers of the rows with these keys; those that are not there are left out."""
        return [self._number_of[one] for one in ids if one in self._number_of]

    def page(self, after: str | None, size: int) -> tuple[list[int], str | None]:
        """Return up to ``size`` rows with keys after ``after`` (None: all), and the next ``after`` (None: no more rows).

        By keys, so that a scan goes on where it was even if rows were reloaded meanwhile.
        """
        if self._sorted is None:
            self._sorted = sorted(self._number_of)
        start = 0 if after is None else bisect.bisect_right(self._sorted, after)
        found = self._sorted[start : start + size]
        return self.find(found), found[-1] if start + size < len(self._sorted) else None

    def compacted(self) -> Table:
        """Return the table, or where most of its numbers are dead one without them."""
        if len(self.ids) <= 2 * len(self) + DEAD:
            return self
        table, numbers = Table(self.fields, self.dim), sorted(self._number_of.values())
        table.put(self.rows(numbers, list(self._columns)), self._keys[numbers])
        return table

    def _codes_of(self, name: str) -> tuple[np.ndarray, dict[str, int]]:
        """Return a column of texts as one number per different text ``[N]``, and the number of each text."""
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
        """Return a bool per row; None: all of them."""
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
        """Return hits by similarity, equally near ones by their primary keys and with one similarity."""
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
        least = np.partition(similar, place, axis=1)[:, place] - CLOSE  # with all that are as near as the last that is wanted
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
        """Return the lists of all rows, learned anew once there are twice as many."""
        import faiss

        total = len(self.ids)
        faiss.omp_set_num_threads(1)  # of this thread: a query is too short to share, and others search beside
        if self._lists is None or len(self) > 2 * self._learned:
            count = int(LISTS * len(self) ** 0.5)
            self._lists = faiss.IndexIVFFlat(faiss.IndexFlatIP(self.dim), self.dim, count, faiss.METRIC_INNER_PRODUCT)
            self._lists.cp.niter, self._lists.cp.max_points_per_centroid = ROUNDS, TRAINED_ON
            self._lists.cp.min_points_per_centroid = 1  # it warns of fewer than 39, which are enough here
            rows = sorted(self._number_of.values(), key=self.ids.__getitem__)  # so that another order learns the same lists
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
