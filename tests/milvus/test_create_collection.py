"""A collection on a server that is made twice at once, by a call that came back empty-handed, or that loses its index."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from milvus_server import MilvusServer

from rapo_rllib.milvus.handle import MilvusHandle
from rapo_rllib.milvus.schema import VECTOR, Field, collection_schema, index_params

FIELDS, DIM = [Field("id")], 4


def bare(handle: MilvusHandle, collection: str) -> None:
    """What a call leaves that is given up before it makes the index."""
    handle.call("create_collection", collection, schema=collection_schema(FIELDS, DIM, None), consistency_level="Bounded")


def unseen_at_first(handle: MilvusHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look finds nothing: the collection comes to be just after it."""
    exists: Callable[[str], bool] = handle.exists
    looks = iter([False])
    monkeypatch.setattr(handle, "exists", lambda collection: next(looks, True) and exists(collection))


def check(handle: MilvusHandle, collection: str) -> None:
    assert handle.index_of(collection) == "FLAT"
    handle.upsert(collection, [{"id": "a"}], np.ones((1, DIM), dtype=np.float32))
    assert [row["id"] for row in handle.get(collection, ["a"], ["id"])] == ["a"]


@pytest.mark.milvus
@pytest.mark.parametrize(
    "made", [bare, lambda handle, collection: handle.create(collection, FIELDS, DIM)], ids=["half", "whole"]
)
def test_a_server_made_by_another(
    milvus_server: MilvusServer,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[Any, str], None],
    request: pytest.FixtureRequest,
) -> None:
    handle, name = MilvusHandle(milvus_server.uri, timeout_s=30.0, uri_key="uri"), f"made_{request.node.callspec.id}"
    made(handle, name)
    unseen_at_first(handle, monkeypatch)
    handle.create(name, FIELDS, DIM)
    check(handle, name)
    handle.close()


@pytest.mark.milvus
def test_others_wait_while_an_index_is_built(milvus_server: MilvusServer) -> None:
    builder, other = (MilvusHandle(milvus_server.uri, timeout_s=30.0, uri_key="uri") for _ in range(2))
    builder.create("indexed", FIELDS, DIM)
    builder.upsert("indexed", [{"id": "a"}], np.ones((1, DIM), dtype=np.float32))
    assert other.count("indexed") == 1
    builder.call("release_collection", "indexed")
    builder.call("drop_index", "indexed", index_name=VECTOR)
    with ThreadPoolExecutor() as pool:
        counted = pool.submit(other.count, "indexed")
        time.sleep(1.0)
        builder.call("create_index", "indexed", index_params=index_params("FLAT"))
        assert counted.result() == 1
    builder.close()
    other.close()
