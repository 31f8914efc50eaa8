"""The counting of ``benchmarks/search_recall.py``; its searches are those of the corpus tests."""

from pathlib import Path

import pytest
from search_recall import gold_paragraphs, recall, sampled_questions

from rapo_rllib.corpus.collection import Hit
from rapo_rllib.corpus.passages import Passage, passage_id


def hits(*ids: str) -> list[Hit]:
    return [Hit(Passage(key, "", ""), 1.0) for key in ids]


@pytest.mark.parametrize(("depth", "expected"), [(1, 1 / 3), (2, 2 / 3), (3, 2 / 3)])
def test_hand_worked_recall(depth: int, expected: float) -> None:
    assert recall([{"a", "b"}, {"c"}], [hits("a", "x", "y"), hits("z", "c")], depth) == pytest.approx(expected)


def test_only_gold_paragraphs_count() -> None:
    row = {"paragraphs": [{"title": "A", "text": "b", "gold": True}, {"title": "C", "text": "d", "gold": False}]}
    assert gold_paragraphs(row) == {passage_id("A", "b")}


def test_the_sample_follows_the_seed(shared_data: Path) -> None:
    first, again, other = (sampled_questions(shared_data, "2wiki", 5, seed) for seed in (0, 0, 1))
    assert [row["id"] for row in first] == [row["id"] for row in again] != [row["id"] for row in other]
    assert len(sampled_questions(shared_data, "2wiki", 10_000, 0)) == 664
