"""Tell what an error of pymilvus or grpc means. Flow: ``connection.py`` asks whether to call again, and what to tell the user.

pymilvus reports the same trouble as its own exception, as a plain one of grpc, or as its own that was caused by one of grpc.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

CODE_NOT_CONNECTED = 2
CODES_NOT_LOADED = (101, 103)  # of a restarted server, until it has read them again
CODE_NO_DATABASE = 800
CODES_RECOVERING = (106, 401, 502, 503, 601, 901, 902, 903, 904)  # a node, channel, segment or replica that is not there yet


class Kind(Enum):
    """The kinds of trouble."""

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
    """The meaning of an error. Raises ``error`` again if it is none of Milvus or gRPC."""
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
