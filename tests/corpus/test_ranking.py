"""Which ranking is used, and how two become one."""

import pytest

from rapo_rllib.corpus.ranking import chosen_mode, fused


def test_hand_worked_fusion() -> None:
    found = fused([["a", "b", "c"], ["c", "a"]], 3)
    assert [key for key, _ in found] == ["a", "c", "b"]
    assert [score for _, score in found] == pytest.approx([1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62])
    assert [key for key, _ in fused([["a"], []], 3)] == ["a"]
    assert [key for key, _ in fused([["a", "b"], ["b", "a"]], 1)] == ["a"]  # of equal ones the first ranking's


@pytest.mark.parametrize(
    ("mode", "has_terms", "chosen"),
    [("auto", True, "hybrid"), ("auto", False, "dense"), ("dense", False, "dense"), ("bm25", True, "bm25")],
)
def test_the_mode_that_is_used(mode: str, has_terms: bool, chosen: str) -> None:
    assert chosen_mode(mode, has_terms, "it") == chosen


@pytest.mark.parametrize(
    ("mode", "has_terms", "message"),
    [
        ("sparse", True, r"mode = 'sparse': must be one of auto, dense, bm25, hybrid"),
        ("hybrid", False, r"mode = 'hybrid': it was made by a Milvus without BM25, .* since 2\.5\. Use mode 'dense'"),
        ("bm25", False, r"mode = 'bm25': it was made by a Milvus without BM25"),
    ],
)
def test_a_mode_that_cannot_be_is_refused(mode: str, has_terms: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen_mode(mode, has_terms, "it")
