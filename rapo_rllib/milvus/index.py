"""Choose the vector index of a collection, and its parameters. Flow: its owner chooses, ``schema.py`` applies.

Every index compares by cosine. Embeddings are normalised, so that is the inner product that the released code's index uses.
"""

from __future__ import annotations

EXACT_LIMIT = 20_000  # rows up to which every query is compared with every row
BUILD_PARAMS = {"HNSW": {"M": 32, "efConstruction": 200}}  # the released code's (algorithm.md section 9)
HNSW_EF_SEARCH = 128  # likewise
AUTO_EF_SEARCH = 200


def index_kind(num_rows: int, choice: str = "auto") -> str:
    """Milvus' name of the index: FLAT compares with every row, HNSW and AUTOINDEX approximate.

    Args:
        num_rows: of the collection.
        choice: one of ``INDEXES``; ``auto`` is exact while the collection is small.
    """
    if choice == "auto":
        return "FLAT" if num_rows <= EXACT_LIMIT else "AUTOINDEX"
    return "HNSW" if choice == "hnsw" else "FLAT"


def search_effort(choice: str, top_k: int) -> int:
    """``ef``, how many neighbours an approximate search keeps in sight; Milvus wants at least ``top_k``."""
    return max(HNSW_EF_SEARCH if choice == "hnsw" else AUTO_EF_SEARCH, top_k)
