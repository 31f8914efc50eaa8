"""Ways to rank passages, and how two rankings become one. Flow: ``collection.py`` asks which one it can use.

The fusion is done here and not by Milvus' ``hybrid_search``: of a Lite path the dense half comes from memory, so both kinds of
Milvus are fused by the same formula.
"""

from __future__ import annotations

from collections.abc import Sequence

MODES = ("auto", "dense", "bm25", "hybrid")
FUSION_CONSTANT = 60  # k of Cormack et al. (2009), who introduced the formula
FUSION_DEPTH = 50  # how far down either ranking is read


def chosen_mode(mode: str, has_terms: bool, where: str) -> str:
    """``mode`` with ``auto`` replaced by the best that a collection can do.

    Args:
        mode: one of ``MODES``.
        has_terms: whether the collection can be searched by words.
        where: the collection and the place it is at, for messages.

    Raises:
        ValueError: an unknown mode, or one that needs words where there are none.
    """
    if mode not in MODES:
        raise ValueError(f"mode = {mode!r}: must be one of {', '.join(MODES)}")
    if mode == "auto":
        return "hybrid" if has_terms else "dense"
    if mode != "dense" and not has_terms:
        raise ValueError(
            f"mode = {mode!r}: {where} was made by a Milvus without BM25, which servers have since 2.5. "
            "Use mode 'dense', or build the corpus again on a newer server"
        )
    return mode


def fused(rankings: Sequence[Sequence[str]], top_k: int) -> list[tuple[str, float]]:
    """Reciprocal rank fusion: the ``top_k`` ids with the highest ``sum over rankings of 1 / (60 + rank)``, ranks from 1.

    >>> fused([["a", "b"], ["b", "c"]], 2)[0][0]
    'b'
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, start=1):
            scores[key] = scores.get(key, 0.0) + 1 / (FUSION_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: -item[1])[:top_k]
