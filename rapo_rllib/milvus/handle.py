"""Operations on a collection. Flow: the buffer and the corpus -> here -> ``connection.py``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.address import checked_uri, is_lite_path
from rapo_rllib.milvus.connection import LONG_S, MilvusConnection
from rapo_rllib.milvus.lite.handle import LiteHandle
from rapo_rllib.milvus.schema import (
    TERMS,
    VECTOR,
    Condition,
    Field,
    Shape,
    check_rows,
    collection_schema,
    escaped,
    index_kind,
    index_params,
    one_of,
    search_effort,
)

if TYPE_CHECKING:
    import numpy as np

PAGE = 16_384  # rows of one answer; a server gives no more
SCAN_S = 300.0  # one page of a scan
RELEASE_S = 60.0  # dropping a collection: a server that just restarted loads it first


class MilvusHandle(MilvusConnection):
    """Operations on a server's collections. Cheap to construct, safe in threads.

    Every method but ``close`` raises ``RetrievalError`` when Milvus does not answer or refuses.
    """

    is_lite = False

    def __init__(self, uri: str, timeout_s: float = 10.0, *, uri_key: str) -> None:
        super().__init__(uri, timeout_s, uri_key=uri_key)
        self._shapes: dict[str, Shape] = {}
        self._written: set[str] = set()  # collections that this process has written to

    def exists(self, collection: str) -> bool:
        """Return whether the collection exists."""
        found = bool(self.call("has_collection", collection))
        if not found:
            self.call("list_collections", "")  # raises if the database is missing: has_collection is then just False
        return found

    def create(self, collection: str, fields: Sequence[Field], dim: int, words_of: str | None = None) -> None:
        """Create and load a collection with primary key ``fields[0]`` and exact cosine search, unless it exists.

        Args:
            collection: its name.
            fields: scalar columns.
            dim: width of the vectors.
            words_of: column that :meth:`search_words` searches, on servers from 2.5 on; None: no search by words.
        """
        if self.exists(collection):
            return
        schema = collection_schema(fields, dim, words_of)
        index = index_params("FLAT", with_terms=words_of is not None)
        try:
            self.call("create_collection", collection, schema=schema, index_params=index, consistency_level="Bounded")
        except RetrievalError as error:
            if not self._is_made(collection, self._timeout_s if "exists" in str(error) else 0.0):
                raise
            if self.index_of(collection) is None:  # the call that was given up had not made the index
                self.call("create_index", collection, index_params=index)
        self.call("load_collection", collection)

    def _is_made(self, collection: str, patience_s: float) -> bool:
        """Wait until another process, or our own delayed call, has made the collection; False after ``patience_s``."""
        end = time.monotonic() + patience_s
        while not self.exists(collection):
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        return True

    def upsert(self, collection: str, rows: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        """Write rows ``[N]`` with vectors ``[N, D]``; a row replaces the stored row with the same key.

        Raises:
            ValueError: see ``schema.check_rows``.
        """
        if not rows:
            return
        check_rows(rows, vectors, self.shape(collection))
        data = [{**row, VECTOR: vector} for row, vector in zip(rows, vectors.tolist(), strict=True)]
        self._written.add(collection)
        self.call("upsert", collection, data=data)

    def shape(self, collection: str) -> Shape:
        """Return the columns, the width of the vectors and the primary key of a collection."""
        if collection not in self._shapes:
            self._shapes[collection] = Shape.described(self.call("describe_collection", collection))
        return self._shapes[collection]

    def delete(self, collection: str, ids: Sequence[str]) -> None:
        """Delete the rows with these keys; a key without a row is no error."""
        if ids:
            self._written.add(collection)
            self.call("delete", collection, filter=one_of(self.shape(collection).key, ids))

    def flush(self, collection: str) -> None:
        """Make Milvus store everything written so far in its final form."""
        self.call("flush", collection, timeout_s=LONG_S)

    def search(
        self,
        collection: str,
        vectors: np.ndarray,
        top_k: int,
        fields: Sequence[str],
        index: str = "auto",
        only: Sequence[Condition | None] | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Find for each of ``vectors [N, D]`` the ``top_k`` nearest rows with their ``similarity``, nearest first.

        Makes one request per distinct condition.

        Args:
            collection: its name.
            vectors: queries.
            top_k: rows per vector.
            fields: columns to return.
            index: one of ``INDEXES``.
            only: for each vector, the condition that its rows must fulfil; None: no condition.
        """
        params = {"metric_type": "COSINE", "params": {"ef": search_effort(index, top_k)}}
        places_of: dict[Condition | None, list[int]] = {}
        for place, condition in enumerate(only or [None] * len(vectors)):
            places_of.setdefault(condition, []).append(place)
        found: list[list[dict[str, Any]]] = [[] for _ in vectors]
        for condition, places in places_of.items():
            data, text = vectors[places].tolist(), condition.expression if condition else ""
            for place, hits in zip(places, self._search(collection, data, VECTOR, top_k, fields, params, text), strict=True):
                found[place] = hits
        return found

    def search_words(
        self, collection: str, texts: Sequence[str], top_k: int, fields: Sequence[str]
    ) -> list[list[dict[str, Any]]]:
        """Find for each text the ``top_k`` rows that match it best by BM25, best first; rows without a match are left out."""
        found = self._search(collection, list(texts), TERMS, top_k, fields, {"metric_type": "BM25"})
        return [[{**row, "similarity": abs(row["similarity"])} for row in rows] for rows in found]

    def _search(
        self,
        collection: str,
        data: list,
        column: str,
        top_k: int,
        fields: Sequence[str],
        params: dict[str, Any],
        only: str = "",
    ) -> list[list[dict[str, Any]]]:
        asked: dict[str, Any] = {"data": data, "anns_field": column, "limit": top_k, "filter": only, "search_params": params}
        level = self._freshness(collection)
        hits = self.call("search", collection, output_fields=list(fields), consistency_level=level, **asked)
        return [[{**hit["entity"], "similarity": float(hit["distance"])} for hit in found] for found in hits]

    def get(self, collection: str, ids: Sequence[str], fields: Sequence[str], latest: bool = True) -> list[dict[str, Any]]:
        """Return the rows with these keys, in no particular order.

        Args:
            collection: its name.
            ids: primary keys.
            fields: columns to return.
            latest: True: read after the latest write of any client, for which a server makes the reader wait; False: only
                after the latest write of this process.
        """
        if not ids:
            return []
        level = "Strong" if latest else self._freshness(collection)
        only = one_of(self.shape(collection).key, ids)
        return list(self.call("query", collection, filter=only, output_fields=list(fields), consistency_level=level))

    def _freshness(self, collection: str) -> str:
        """Choose the consistency level: a reader sees this process's writes at once, others' writes some seconds later."""
        return "Session" if collection in self._written else "Bounded"

    def count(self, collection: str) -> int:
        """Count the rows, as of the latest write."""
        rows = self.call("query", collection, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(rows[0]["count(*)"])

    def pages(self, collection: str, fields: Sequence[str], rows: int = PAGE) -> Iterator[list[dict[str, Any]]]:
        """Yield all rows, as of the latest write, in no particular order, up to ``rows`` at a time."""
        arguments: dict[str, Any] = {"batch_size": rows, "output_fields": list(fields), "consistency_level": "Strong"}
        key = self.shape(collection).key
        self.count(collection)  # waits for the latest write; pymilvus' iterator does not, at any level
        iterator = self.call("query_iterator", collection, timeout_s=max(SCAN_S, self._timeout_s), **arguments)
        try:
            while page := iterator.next():
                iterator._next_id = escaped(page[-1][key])  # pymilvus pastes it into the next page's expression
                yield list(page)
            iterator.close()
        except Exception as error:
            raise self.retrieval_error("query_iterator", collection, error) from error

    def index_of(self, collection: str) -> str | None:
        """Return the kind of the vector index; None if there is no index."""
        return (self.call("describe_index", collection, index_name=VECTOR) or {}).get("index_type")

    def set_index(self, collection: str, index: str = "auto") -> None:
        """Build the vector index that ``index`` asks for, unless it is there; ``auto`` chooses by the present size.

        Calls of other users wait meanwhile, because a collection without an index is not loaded.
        """
        kind = index_kind(self.count(collection), index)
        if self.index_of(collection) == kind:
            return
        self.call("release_collection", collection, timeout_s=RELEASE_S)
        self.call("drop_index", collection, timeout_s=RELEASE_S, index_name=VECTOR)
        self.call("create_index", collection, timeout_s=LONG_S, index_params=index_params(kind))
        self.call("load_collection", collection, timeout_s=LONG_S)

    def drop(self, collection: str) -> None:
        """Delete the collection, if it is there."""
        self._shapes.pop(collection, None)
        if self.exists(collection):
            self.call("drop_collection", collection, timeout_s=RELEASE_S)


Milvus = MilvusHandle | LiteHandle


def milvus_at(uri: str, timeout_s: float = 10.0, *, uri_key: str) -> Milvus:
    """Make the handle of a Milvus Lite path or of a server.

    Args:
        uri: a path that ends in .db, or ``http(s)://host:port[/database]``.
        timeout_s: limit of one call, and of the wait for a lost server.
        uri_key: what the user calls ``uri``, for messages.

    Raises:
        ValueError: ``uri`` is neither.
    """
    kind = LiteHandle if is_lite_path(checked_uri(uri, uri_key)) else MilvusHandle
    return kind(uri, timeout_s, uri_key=uri_key)
