"""The connection to Milvus, a Lite path or a server. The only file that imports pymilvus. Flow: ``store.py`` uses it.

Facts it rests on (pymilvus 3.0): a client cannot be pickled or used after a fork; a dead server makes every call fail at
once, and the documented retry never runs; a restarted Lite has its collections released (code 101); Lite accepts what a
server refuses (long text, NaN), so rows are checked here; errors can be plain grpc ones.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rapo_rllib.buffer.lite_lease import LiteLease
from rapo_rllib.errors import RetrievalError

if TYPE_CHECKING:
    import numpy as np
    from pymilvus import MilvusClient

MAX_VARCHAR_BYTES = 65_535  # UTF-8; a server refuses more, Lite does not
VECTOR = "vector"
EXACT_LIMIT = 20_000  # rows up to which every query is compared with every row; about 35 ms a request on Lite
CODE_NOT_CONNECTED, CODE_NOT_LOADED = 2, 101
FIRST_CONNECT_S = 2.0  # a URI that never answered is more likely wrong than busy
LITE_RESTART_S = 30.0
GRPC_OPTIONS = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.keepalive_time_ms": 600_000,  # idle connections that ping more often are cut off by Lite's server
}


@dataclass(frozen=True)
class Field:
    """A scalar column: ``kind`` is VARCHAR, INT64 or DOUBLE; ``max_bytes`` is for VARCHAR."""

    name: str
    kind: str = "VARCHAR"
    max_bytes: int = MAX_VARCHAR_BYTES


def checked_uri(uri: str) -> str:
    """The URI as it is used: ``http(s)://…`` unchanged, a Lite path made absolute.

    Raises:
        ValueError: neither of both, naming ``step_trace_buffer.uri``.
    """
    if uri.startswith(("http://", "https://")) and len(uri.split("://", 1)[1]) > 0:
        return uri
    if uri.endswith(".db") and "://" not in uri:
        return os.path.abspath(os.path.expanduser(uri))
    raise ValueError(
        f"step_trace_buffer.uri: {uri!r} is neither a Milvus Lite path that ends in .db nor a server such as "
        "http://localhost:19530 or https://…; correct it"
    )


def index_kind(num_rows: int) -> str:
    """FLAT (exact) while the buffer is small, then AUTOINDEX (approximate)."""
    return "FLAT" if num_rows <= EXACT_LIMIT else "AUTOINDEX"


class MilvusHandle:
    """Calls Milvus and repeats what may be repeated. Holds only settings until the first call; picklable; safe in threads.

    Every method but :meth:`close` raises ``RetrievalError`` when Milvus does not answer or refuses.
    """

    def __init__(self, uri: str, token: str = "", db_name: str = "", timeout_s: float = 10.0) -> None:
        self.uri = checked_uri(uri)
        self._token, self._db_name, self._timeout_s = token, db_name, timeout_s
        self._forget_process_state()

    def _forget_process_state(self) -> None:
        self._lock = threading.RLock()
        self._lease = LiteLease(self.uri) if self.is_lite else None
        self._client: MilvusClient | None = None
        self._pid = os.getpid()
        self._was_connected = False

    def __getstate__(self) -> dict:
        return {"uri": self.uri, "_token": self._token, "_db_name": self._db_name, "_timeout_s": self._timeout_s}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._forget_process_state()

    @property
    def is_lite(self) -> bool:
        """Whether the URI is a Milvus Lite path."""
        return self.uri.endswith(".db") and "://" not in self.uri

    def exists(self, collection: str) -> bool:
        """Whether the collection exists."""
        if self.is_lite and not os.path.exists(self.uri):
            return False  # without a folder there is nothing a server could be asked
        return bool(self._call("has_collection", collection))

    def create(self, collection: str, fields: Sequence[Field], dim: int) -> None:
        """Create and load a collection with primary key ``fields[0]`` and exact cosine search, unless it exists."""
        if self.exists(collection):
            return
        from pymilvus import DataType

        client = self._connected_client()
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        for number, field in enumerate(fields):
            limit = {"max_length": field.max_bytes} if field.kind == "VARCHAR" else {}
            schema.add_field(field.name, DataType[field.kind], is_primary=number == 0, **limit)
        schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=dim)
        index = self._index_params(client, "FLAT")
        try:
            self._call("create_collection", collection, schema=schema, index_params=index, consistency_level="Bounded")
        except RetrievalError:
            if not self.exists(collection):  # else another process was faster
                raise
        self._call("load_collection", collection)

    def upsert(self, collection: str, rows: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        """Write rows ``[N]`` with vectors ``[N, D]``; the same key twice in the collection means the later row.

        Raises:
            ValueError: a text is longer than 65,535 bytes, a vector is not finite, or a key appears twice in ``rows``.
        """
        if not rows:
            return
        check_rows(rows, vectors)
        data = [{**row, VECTOR: vector} for row, vector in zip(rows, vectors.tolist(), strict=True)]
        self._call("upsert", collection, data=data)

    def search(self, collection: str, vectors: np.ndarray, top_k: int, fields: Sequence[str]) -> list[list[dict[str, Any]]]:
        """For each of ``vectors [N, D]`` the ``top_k`` nearest rows, nearest first, each with its ``similarity``."""
        hits = self._call(
            "search",
            collection,
            data=vectors.tolist(),
            limit=top_k,
            output_fields=list(fields),
            search_params={"metric_type": "COSINE", "params": {"ef": max(200, top_k)}},
        )
        return [[{**hit["entity"], "similarity": float(hit["distance"])} for hit in found] for found in hits]

    def get(self, collection: str, ids: Sequence[str], fields: Sequence[str]) -> list[dict[str, Any]]:
        """The rows with these keys, as they are after the latest write."""
        if not ids:
            return []
        return list(self._call("get", collection, ids=list(ids), output_fields=list(fields), consistency_level="Strong"))

    def count(self, collection: str) -> int:
        """Number of rows, after the latest write."""
        rows = self._call("query", collection, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(rows[0]["count(*)"])

    def index_of(self, collection: str) -> str | None:
        """Kind of the vector index."""
        return (self._call("describe_index", collection, index_name=VECTOR) or {}).get("index_type")

    def set_index(self, collection: str, kind: str) -> None:
        """Change the index to ``kind``. Other users' calls wait meanwhile: a collection without index is not loaded."""
        if self.index_of(collection) == kind:
            return
        self._call("release_collection", collection)
        self._call("drop_index", collection, index_name=VECTOR)
        index = self._index_params(self._connected_client(), kind)
        self._call("create_index", collection, timeout_s=3600.0, index_params=index)
        self._call("load_collection", collection, timeout_s=3600.0)

    def drop(self, collection: str) -> None:
        """Delete the collection, if it is there."""
        if self.exists(collection):
            self._call("drop_collection", collection)

    def close(self) -> None:
        """Close the connection and give back the lease of a Lite path. The next call opens both again."""
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                self._client.close()
            self._client = None
            if self._lease is not None:
                self._lease.release()

    def _call(self, method: str, collection: str, timeout_s: float | None = None, **arguments: Any) -> Any:
        """One idempotent call, repeated with backoff while the server is away."""
        start, wait_s, load = time.monotonic(), 0.1, False
        while True:
            try:
                client = self._connected_client()
                if load:
                    client.load_collection(collection, timeout=self._timeout_s)
                result = getattr(client, method)(collection, timeout=timeout_s or self._timeout_s, **arguments)
                self._was_connected = True
                return result
            except Exception as error:
                code, lost = _diagnosis(error)
                load = load or code == CODE_NOT_LOADED
                repeat = lost or code == CODE_NOT_LOADED
                if not repeat or time.monotonic() + wait_s > start + self._patience_s():
                    raise self._retrieval_error(method, collection, error, lost) from error
                if lost:
                    self._drop_client()
            time.sleep(wait_s * (0.5 + random.random()))
            wait_s = min(wait_s * 2, 1.0)

    def _patience_s(self) -> float:
        if not self._was_connected:
            return min(self._timeout_s, FIRST_CONNECT_S)
        return max(self._timeout_s, LITE_RESTART_S) if self.is_lite else self._timeout_s

    def _retrieval_error(self, method: str, collection: str, error: Exception, lost: bool) -> RetrievalError:
        reason = " ".join(str(error).split())[:300]
        if not lost:
            return RetrievalError(f"Milvus at {self.uri} refused {method} on collection {collection!r}: {reason}")
        advice = (
            f"see {self.uri}.log" if self.is_lite else "start the server, or correct step_trace_buffer.uri, .token or .db_name"
        )
        return RetrievalError(f"Milvus at {self.uri} does not answer ({method}): {advice}. {reason}")

    def _connected_client(self) -> MilvusClient:
        with self._lock:
            if self._pid != os.getpid():  # forked: gRPC channels do not survive that
                self._client, self._pid = None, os.getpid()
            if self._client is None:
                address = self.uri if self._lease is None else self._lease.address()
                self._client = _new_client(address, self._token, self._db_name, self._timeout_s)
            return self._client

    def _drop_client(self) -> None:
        with self._lock:
            self._client = None  # not closed: other threads may be using it

    @staticmethod
    def _index_params(client: MilvusClient, kind: str) -> Any:
        params = client.prepare_index_params()
        params.add_index(VECTOR, index_type=kind, index_name=VECTOR, metric_type="COSINE")
        return params


def check_rows(rows: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
    """Refuse rows that a Milvus server would refuse or, worse, take. See :meth:`MilvusHandle.upsert`."""
    import numpy as np

    if vectors.ndim != 2 or len(rows) != len(vectors) or not np.isfinite(vectors).all():
        raise ValueError(f"got {len(rows)} rows and vectors of shape {vectors.shape}; they must match and be finite numbers")
    key = next(iter(rows[0]))
    keys = [row[key] for row in rows]
    if len(set(keys)) < len(keys):
        doubled = next(k for k in keys if keys.count(k) > 1)
        raise ValueError(f"two rows have the same {key} {doubled!r}")
    for row in rows:
        for name, value in row.items():
            size = len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else 0
            if size > MAX_VARCHAR_BYTES:
                raise ValueError(
                    f"{name} of row {row[key]!r} has {size} bytes; Milvus stores {MAX_VARCHAR_BYTES}. Shorten or drop it."
                )


def _new_client(address: str, token: str, db_name: str, timeout_s: float) -> MilvusClient:
    undo = "PYTHON_DOTENV_DISABLED" not in os.environ
    os.environ.setdefault("PYTHON_DOTENV_DISABLED", "1")  # importing pymilvus would read a .env file into our environment
    try:
        from pymilvus import MilvusClient
    finally:
        if undo:
            os.environ.pop("PYTHON_DOTENV_DISABLED", None)
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs a traceback for every error that it also raises
    return MilvusClient(uri=address, token=token, db_name=db_name, timeout=timeout_s, dedicated=True, grpc_options=GRPC_OPTIONS)


def _diagnosis(error: Exception) -> tuple[int | None, bool]:
    """The Milvus error code, and whether the server is away. Raises ``error`` again if it is none of Milvus or gRPC."""
    import grpc
    from pymilvus.exceptions import MilvusException

    if isinstance(error, grpc.RpcError):
        status = error.code() if hasattr(error, "code") else None
        return None, status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    if isinstance(error, MilvusException):
        return error.code, error.code == CODE_NOT_CONNECTED
    raise error
