"""The connection to a Milvus server. Flow: ``handle.py`` makes every call here; calls are repeated while the server is away.

This relies on three facts about pymilvus 3.0: if the server is dead, every call fails at once and the documented retry never
runs; after a restart the server's collections are not loaded (code 101); some errors are plain gRPC errors.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.address import checked_uri
from rapo_rllib.milvus.schema import pymilvus_module
from rapo_rllib.services.credentials import TOKEN_VARIABLE, secret_of

if TYPE_CHECKING:
    from pymilvus import MilvusClient
from dataclasses import dataclass
from enum import Enum

CODE_NOT_CONNECTED = 2
CODES_NOT_LOADED = (101, 103, 700)  # after a restart, until it is loaded again; 700: its index is being built anew
CODE_NO_DATABASE = 800
CODES_RECOVERING = (106, 401, 502, 503, 601, 901, 902, 903, 904)  # a node, channel, segment or replica that is not there yet


class Kind(Enum):
    """The kinds of failed calls."""

    LOST = "the server does not answer"
    NOT_LOADED = "the collection is not loaded"
    TOKEN = "the token is wrong"
    DATABASE = "there is no such database"
    REFUSED = "the server refuses"


@dataclass(frozen=True)
class Fault:
    """One failed call: its kind, and Milvus' own words on one line."""

    kind: Kind
    reason: str


def fault_of(error: Exception) -> Fault:
    """Classify the error of a call. Raises ``error`` again if it comes from neither Milvus nor gRPC."""
    import grpc
    from pymilvus.exceptions import MilvusException

    call = error if isinstance(error, grpc.RpcError) else error.__cause__
    status = call.code() if isinstance(call, grpc.Call) else None
    words = str(error)
    if isinstance(call, grpc.Call):
        words = f"{words if isinstance(error, MilvusException) else ''} {status}: {call.details()}"
    reason = " ".join(words.split())[:400]
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return Fault(Kind.TOKEN, reason)
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return Fault(Kind.LOST, reason)
    if isinstance(error, MilvusException):
        return Fault(_kind_of(error.code, reason), reason)
    if isinstance(error, grpc.RpcError):
        return Fault(Kind.REFUSED, reason)
    raise error


def _kind_of(code: int, reason: str) -> Kind:
    if code in CODES_NOT_LOADED:
        return Kind.NOT_LOADED
    if code == CODE_NO_DATABASE:
        return Kind.DATABASE
    away = code in (CODE_NOT_CONNECTED, *CODES_RECOVERING) or "service not ready" in reason
    return Kind.LOST if away else Kind.REFUSED


FIRST_CONNECT_S = 2.0  # patience with a URI that never answered (more likely wrong than busy) or that was given up
LONG_S = 3600.0  # timeout of the longest call: building an index of many rows
GRPC_OPTIONS = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.keepalive_time_ms": 600_000,  # the server cuts off clients that ping more often
}


class MilvusConnection:
    """Connection to a Milvus server that repeats calls while the server is away. The first call connects; thread-safe.

    Args:
        uri: of a server; its path names a database there.
        timeout_s: limit of one call, and of the wait for a lost server.
        uri_key: what the user calls ``uri``, for messages.

    Raises:
        ValueError: ``uri`` names no server.
    """

    def __init__(self, uri: str, timeout_s: float = 10.0, *, uri_key: str) -> None:
        self.uri = checked_uri(uri, uri_key)
        self._uri_key, self._timeout_s = uri_key, timeout_s
        self._lock = threading.RLock()
        self._client: MilvusClient | None = None
        self._dropped: list[tuple[float, MilvusClient]] = []  # dropped clients, each with the time of its drop
        self._is_there = False

    def close(self) -> None:
        """Close the connection. The next call opens it again."""
        with self._lock:
            if self._client is not None:
                self._drop_client(self._client)
            self._close_dropped(0.0)

    def call(self, method: str, collection: str, timeout_s: float | None = None, **arguments: Any) -> Any:
        """Call an idempotent method about a collection (``""``: about none); repeat it with backoff while the server is away.

        Raises:
            RetrievalError: Milvus does not answer, or refuses.
        """
        start, wait_s, load, client = time.monotonic(), 0.1, False, None
        while True:
            try:
                client = self.client()
                if load:
                    client.load_collection(collection, timeout=self._timeout_s)
                about = (collection,) if collection else ()
                result = getattr(client, method)(*about, timeout=timeout_s or self._timeout_s, **arguments)
                self._is_there = True
                return result
            except Exception as error:
                fault = fault_of(error)
                load = load or fault.kind is Kind.NOT_LOADED
                if fault.kind is Kind.LOST:
                    self._drop_client(client)
                if fault.kind not in (Kind.LOST, Kind.NOT_LOADED) or time.monotonic() + wait_s > start + self._patience_s():
                    self._is_there = False
                    raise RetrievalError(self._message(method, collection, fault)) from error
            time.sleep(wait_s * (0.5 + random.random()))
            wait_s = min(wait_s * 2, 1.0)

    def client(self) -> MilvusClient:
        """Return this connection's client; connect first if there is none."""
        with self._lock:
            if self._client is None:
                self._close_dropped(LONG_S)
                self._client = _new_client(self.uri, secret_of(TOKEN_VARIABLE), self._timeout_s)
            return self._client

    def retrieval_error(self, method: str, collection: str, error: Exception) -> RetrievalError:
        """Return the ``RetrievalError`` for ``error``. Raises ``error`` itself if it is not from Milvus or gRPC."""
        return RetrievalError(self._message(method, collection, fault_of(error)))

    def _message(self, method: str, collection: str, fault: Fault) -> str:
        where = f"Milvus at {self.uri}"
        if fault.kind is Kind.TOKEN:
            variable = f"the environment variable {TOKEN_VARIABLE}"
            given = f"that in {variable} is not known there" if secret_of(TOKEN_VARIABLE) else f"{variable} is not set"
            return f"{where} asks for a token, and {given}: set it on every machine, or correct {self._uri_key}. {fault.reason}"
        if fault.kind is Kind.DATABASE:
            return f"{where} has no such database: make it there, or correct the path of {self._uri_key}. {fault.reason}"
        if fault.kind is Kind.LOST:
            return f"{where} does not answer ({method}): start the server, or correct {self._uri_key}. {fault.reason}"
        return f"{where} refused {method} on collection {collection!r}: {fault.reason}."

    def _patience_s(self) -> float:
        return self._timeout_s if self._is_there else min(self._timeout_s, FIRST_CONNECT_S)

    def _drop_client(self, lost: MilvusClient | None) -> None:
        """Drop the client ``lost``, unless another thread has dropped it. It is closed later: threads may still use it."""
        with self._lock:
            if lost is not None and self._client is lost:
                self._dropped.append((time.monotonic(), lost))
                self._client = None

    def _close_dropped(self, age_s: float) -> None:
        """Close the clients that were dropped at least ``age_s`` ago; otherwise pymilvus would keep them for good."""
        old = [client for since, client in self._dropped if time.monotonic() - since >= age_s]
        self._dropped = [(since, client) for since, client in self._dropped if client not in old]
        for client in old:
            client.close()


def _new_client(address: str, token: str, timeout_s: float) -> MilvusClient:
    client = pymilvus_module().MilvusClient
    return client(uri=address, token=token, timeout=timeout_s, dedicated=True, grpc_options=GRPC_OPTIONS)
