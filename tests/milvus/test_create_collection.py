"""A collection that is made twice at once, or by a call that came back empty-handed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from milvus_server import MilvusServer

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.handle import MilvusHandle
from rapo_rllib.milvus.schema import Field, collection_schema

FIELDS, DIM = [Field("id")], 4


@pytest.fixture
def lite(tmp_path: Path) -> Any:
    handle = MilvusHandle(str(tmp_path / "steps.db"), timeout_s=10.0, uri_key="uri")
    yield handle
    handle.close()


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


def test_one_that_is_being_made_is_waited_for(lite: MilvusHandle, tmp_path: Path) -> None:
    bare(lite, "other")
    folders = tmp_path / "steps.db/collections"
    (folders / "steps" / "wal").mkdir(parents=True)  # not just what a kill leaves, which would be made anew

    def finish() -> None:
        time.sleep(0.7)
        (folders / "steps/schema.json").write_text((folders / "other/schema.json").read_text().replace("other", "steps"))

    thread = threading.Thread(target=finish)
    thread.start()
    lite.create("steps", FIELDS, DIM)
    thread.join()
    check(lite, "steps")


def test_what_never_comes_to_be_is_refused(tmp_path: Path) -> None:
    handle = MilvusHandle(str(tmp_path / "steps.db"), timeout_s=1.0, uri_key="uri")
    bare(handle, "other")  # makes the folders
    (tmp_path / "steps.db/collections/steps/wal").mkdir(parents=True)
    with pytest.raises(RetrievalError, match=r"refused create_collection on collection 'steps'.*restore a copy of the folder"):
        handle.create("steps", FIELDS, DIM)
    handle.close()


@pytest.mark.parametrize(
    "made", [bare, lambda handle, collection: handle.create(collection, FIELDS, DIM)], ids=["half", "whole"]
)
def test_lite_made_by_another(lite: MilvusHandle, monkeypatch: pytest.MonkeyPatch, made: Callable[[Any, str], None]) -> None:
    made(lite, "steps")
    unseen_at_first(lite, monkeypatch)
    lite.create("steps", FIELDS, DIM)
    check(lite, "steps")


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
