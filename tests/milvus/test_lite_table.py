"""Rows and keys of a Lite collection in memory: searches against numpy, conditions, changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rapo_rllib.milvus.lite import table as tables
from rapo_rllib.milvus.lite.table import Table
from rapo_rllib.milvus.schema import VECTOR, Condition, Field

FIELDS = (Field("id"), Field("source"), Field("reward", "DOUBLE"))
SOURCES = ("gpt", "claude", "policy")


def rows_of(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"{n:05d}", "source": SOURCES[n % 3], "reward": n % 5 / 4} for n in range(first, first + count)]


def vectors_of(count: int, dim: int = 16, seed: int = 0) -> np.ndarray:
    """Around a few centres, as texts are; of different lengths, which a cosine does not see."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(20, dim))
    found = centres[rng.integers(0, 20, count)] + 0.5 * rng.normal(size=(count, dim))
    return (found * rng.uniform(0.5, 2.0, (count, 1))).astype(np.float32)


def filled(count: int = 200) -> tuple[Table, np.ndarray]:
    table, vectors = Table(FIELDS, 16), vectors_of(count)
    table.put(rows_of(count), vectors)
    return table, vectors


def ids(table: Table, found: list[list[tuple[int, float]]]) -> list[list[str]]:
    return [[row["id"] for row in table.rows([number for number, _ in hits], ["id"])] for hits in found]


def by_numpy(vectors: np.ndarray, queries: np.ndarray, top_k: int, allowed: np.ndarray) -> list[list[int]]:
    keys = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similar = np.where(allowed, queries @ keys.T, -np.inf)
    return [[int(n) for n in np.argsort(-row)[:top_k] if row[n] > -np.inf] for row in similar]


def test_hand_worked_neighbours() -> None:
    table = Table((Field("id"),), 2)
    table.put([{"id": one} for one in "abcd"], np.array([[1, 0], [0, 3], [2, 2], [-1, 0]], dtype=np.float32))
    (found,) = table.nearest(np.array([[5.0, 0.0]], dtype=np.float32), 3, None, exact=False)
    assert [row["id"] for row in table.rows([number for number, _ in found], ["id"])] == ["a", "c", "b"]
    assert [similarity for _, similarity in found] == pytest.approx([1.0, 0.5**0.5, 0.0])


def test_of_equally_near_rows_the_smallest_keys_are_found() -> None:
    table = Table((Field("id"),), 2)
    table.put([{"id": str(n)} for n in (7, 3, 9, 1)], np.ones((4, 2), dtype=np.float32))
    assert ids(table, table.nearest(np.ones((1, 2), dtype=np.float32), 2, None, exact=True)) == [["1", "3"]]


@pytest.mark.parametrize("lists", [False, True])
def test_among_many_with_one_key_the_order_of_rows_decides_nothing(monkeypatch: pytest.MonkeyPatch, lists: bool) -> None:
    """Of traces of one question without a history, say: more than any search looks at beyond what is wanted."""
    if lists:
        monkeypatch.setattr(tables, "EXACT_LIMIT", 20)
    vectors = np.concatenate([np.tile(vectors_of(1, seed=3), (60, 1)), vectors_of(240)])
    rng, queries = np.random.default_rng(2), vectors_of(1, seed=3) + 0.01 * vectors_of(5, seed=4)
    for _ in range(3):
        order = rng.permutation(300)
        table = Table(FIELDS, 16)
        table.put([rows_of(300)[n] for n in order], vectors[order])
        found = table.nearest(queries, 3, None, exact=not lists)
        assert ids(table, found) == [["00000", "00001", "00002"]] * 5
        assert all(len({similarity for _, similarity in hits}) == 1 for hits in found)


def test_numbers_of_rows_that_are_gone_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "DEAD", 10)
    table, vectors = filled(30)
    table.delete([f"{n:05d}" for n in range(19)])
    assert table.compacted() is table
    table.delete([f"{n:05d}" for n in range(19, 21)])
    small = table.compacted()
    assert small is not table and len(small) == 9 and len(small.ids) == 9
    for one in (table, small):
        assert ids(one, one.nearest(vectors[25:26], 2, None, exact=False))[0][0] == "00025"
    assert small.rows(small.find(["00029"]), ["id", "source", "reward"]) == [rows_of(30)[29]]


def test_an_empty_table_finds_nothing() -> None:
    table = Table(FIELDS, 16)
    assert table.nearest(vectors_of(2), 3, None, exact=False) == [[], []]
    assert table.page(None, 10) == ([], None) and len(table) == 0


ONLY = [None, *(Condition("source", text, negated) for text in ("gpt", "nobody") for negated in (False, True))]


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("gone", [0, 60])
def test_every_answer_is_numpys(monkeypatch: pytest.MonkeyPatch, lists: bool, gone: int) -> None:
    if lists:  # all of them, so that what they find is exact
        monkeypatch.setattr(tables, "EXACT_LIMIT", 20)
        monkeypatch.setattr(tables, "PROBES", 1000)
    table, vectors = filled()
    table.delete([f"{n:05d}" for n in range(gone)])
    alive, rows = np.arange(200) >= gone, rows_of(200)
    queries = vectors_of(len(ONLY) * 12, seed=1)
    chosen = [ONLY[n % len(ONLY)] for n in range(len(queries))]
    found = table.nearest(queries, 5, chosen, exact=not lists)
    for query, only, hits in zip(queries, chosen, found, strict=True):
        allowed = alive & np.array([only is None or (row["source"] == only.text) != only.negated for row in rows])
        assert [number for number, _ in hits] == by_numpy(vectors, query[None], 5, allowed)[0], only
    assert (table._lists is not None) == lists


def test_the_lists_find_nearly_all_and_take_in_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "EXACT_LIMIT", 1000)
    monkeypatch.setattr(tables, "PROBES", 16)
    table, vectors = filled(3000)
    found = table.nearest(vectors[:300], 1, None, exact=False)
    assert np.mean([hits[0][0] == number for number, hits in enumerate(found)]) > 0.97
    fresh = vectors_of(100, seed=5)
    table.put(rows_of(100, first=3000), fresh)
    assert [hits[0][0] for hits in table.nearest(fresh, 1, None, exact=False)] == list(range(3000, 3100))
    assert table._learned == 3000
    table.put(rows_of(4000, first=4000), vectors_of(4000, seed=6))
    table.nearest(fresh[:1], 1, None, exact=False)
    assert table._learned == 7100  # more than twice as many


def test_rows_in_another_order_learn_the_same_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a buffer that was read anew: a run that goes on from a checkpoint retrieves what it would have."""
    monkeypatch.setattr(tables, "EXACT_LIMIT", 1000)
    monkeypatch.setattr(tables, "PROBES", 4)
    rows, vectors, queries = rows_of(3000), vectors_of(3000), vectors_of(200, seed=9)
    found = []
    for order in (np.arange(3000), np.random.default_rng(1).permutation(3000)):
        table = Table(FIELDS, 16)
        table.put([rows[n] for n in order], vectors[order])
        found.append(ids(table, table.nearest(queries, 3, None, exact=False)))
    assert found[0] == found[1]
    assert found[0] != ids(table, table.nearest(queries, 3, None, exact=True))  # so few lists miss some


def test_what_is_asked_for_exactly_asks_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "EXACT_LIMIT", 20)
    table, vectors = filled()
    assert table.nearest(vectors[:3], 1, None, exact=True) and table._lists is None


def test_a_row_written_again_takes_the_place_of_the_first() -> None:
    table, vectors = filled(10)
    table.put([{"id": "00003", "source": "new", "reward": 9.0}], vectors[3:4])
    table.put([{"id": "00004", "source": "moved", "reward": 8.0}], -vectors[4:5])
    assert len(table) == 10 and len(table.page(None, 100)[0]) == 10
    assert table.rows(table.find(["00003", "00004", "none"]), ["source", "reward"]) == [
        {"source": "new", "reward": 9.0},
        {"source": "moved", "reward": 8.0},
    ]
    (found,) = table.nearest(-vectors[4:5], 1, [Condition("source", "moved")], exact=False)
    assert found[0][1] == pytest.approx(1.0)
    assert table.nearest(vectors[3:4], 5, [Condition("source", "new")], exact=False)[0][0][1] == pytest.approx(1.0)
    assert "00004" not in ids(table, table.nearest(vectors[4:5], 3, None, exact=False))[0]


def test_deleted_rows_are_nowhere_and_may_come_again() -> None:
    table, vectors = filled(10)
    table.delete(["00001", "00002", "none"])
    assert len(table) == 8 and table.find(["00001"]) == []
    assert table.page(None, 100) == ([0, 3, 4, 5, 6, 7, 8, 9], None)
    table.put(rows_of(1, first=1), vectors[1:2])
    assert ids(table, table.nearest(vectors[1:2], 1, None, exact=False)) == [["00001"]]


def test_pages_are_all_rows_once() -> None:
    table, vectors = filled(10)
    table.delete(["00004"])
    pages, after = [], None
    for _ in range(3):
        numbers, after = table.page(after, 4)
        pages.append(table.rows(numbers, ["id", VECTOR]))
    assert after is None
    assert [len(page) for page in pages] == [4, 4, 1]
    assert [int(row["id"]) for page in pages for row in page] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert np.array_equal(pages[1][0][VECTOR], vectors[5])


def test_a_condition_in_milvus_language() -> None:
    assert Condition("source", 'a"b', negated=True).expression == r'source != "a\"b"'
