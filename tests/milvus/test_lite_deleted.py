"""A Lite folder that is deleted and made again, whatever its server is doing: nothing gets from the old into the new."""

import fcntl
import hashlib
import os
import random
import resource
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from buffer_helpers import running, wait_until
from milvus_lite.engine.collection import Collection
from milvus_lite.index.brute_force import BruteForceIndex
from milvus_lite.index.faiss_hnsw import FaissHnswIndex
from milvus_lite.schema.types import CollectionSchema, DataType, FieldSchema
from milvus_lite.storage.manifest import Manifest
from milvus_lite.storage.wal import WAL

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.handle import MilvusHandle
from rapo_rllib.milvus.lite.engine import SafeDatabase, open_database
from rapo_rllib.milvus.lite.server import folder_id, open_folder, publish_endpoint, read_endpoint, wait_until_unused
from rapo_rllib.milvus.schema import Field

HOOKS = {
    "before a row is logged": (WAL, "write_insert"),
    "before a deletion is logged": (WAL, "write_delete"),
    "before a new log": (WAL, "__init__"),
    "before rows go to a file": ("milvus_lite.engine.flush", "write_data_file"),
    "before deletions go to a file": ("milvus_lite.engine.flush", "write_delta_file"),
    "before a manifest": (Manifest, "save"),
    "before old logs are deleted": (WAL, "close_and_delete"),
    "before files are merged": ("milvus_lite.engine.compaction", "write_data_file"),
    "before an exact index": (BruteForceIndex, "save"),
    "before a graph": (FaissHnswIndex, "save"),
    "before an index of the background": (Collection, "_ensure_loaded_segments_indexed"),
    "before a schema": ("milvus_lite.db", "save_schema"),
    "before a collection is dropped": (shutil, "rmtree"),
    "before aliases": (SafeDatabase, "_save_aliases"),
}


def test_a_server_that_has_no_descriptor_left_looks_again(tmp_path: Path) -> None:
    """Its clients may have taken all for a moment; those that it has are served on."""
    path, stop = str(tmp_path / "steps.db"), threading.Event()
    for file in ("steps.db/LOCK", "steps.db.users"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    folder = folder_id(path)
    assert folder is not None
    with publish_endpoint(path, 1, folder) as endpoint, open(f"{path}.users") as lease, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lease, fcntl.LOCK_SH)
        limits, free = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            waiting = pool.submit(wait_until_unused, path, folder, endpoint, stop, 0.01)
            time.sleep(0.5)
            assert not waiting.done()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            stop.set()
        assert waiting.result() is None


def schema() -> CollectionSchema:
    return CollectionSchema(
        [
            FieldSchema("id", DataType.VARCHAR, is_primary=True, max_length=100),
            FieldSchema("vector", DataType.FLOAT_VECTOR, dim=4),
        ]
    )


def rows(*keys: str) -> list[dict]:
    return [{"id": key, "vector": [float(len(key)), 1.0, 2.0, 3.0]} for key in keys]


def content(folder: Path) -> dict[str, str]:
    """Every file and folder in it, with a hash of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def use_everything(database: SafeDatabase) -> None:
    """Each step may fail, as its folder may be gone; the next one is tried none the less."""

    def steps() -> Collection:
        return database.get_collection("steps")

    def fill() -> None:
        for number in range(5):  # so many files that they are merged
            steps().upsert(rows(*(f"{number}-{i}" for i in range(9))))
            steps().flush()

    tried = [
        lambda: database.create_collection("steps", schema()),
        lambda: steps().create_index("vector", {"index_type": "FLAT", "metric_type": "COSINE"}),
        fill,
        lambda: steps().load(),
        lambda: database.create_collection("more", schema()).insert(rows("more")),
        lambda: database.get_collection("more").create_index("vector", {"index_type": "HNSW", "metric_type": "COSINE"}),
        lambda: database.get_collection("more").flush(),
        lambda: database.get_collection("more").load(),
        lambda: database.create_alias("steps", "other_name"),
        lambda: steps().delete(["0-0"]),
        lambda: steps().flush(),
        lambda: steps().insert(rows("unflushed")),
        lambda: steps()._wait_for_bg(),
        lambda: database.drop_collection("more"),
        lambda: database.rename_collection("steps", "renamed"),
        lambda: database.close(),
    ]
    for step in tried:
        try:
            step()
        except (OSError, RuntimeError, AssertionError):  # faiss says RuntimeError of a file that cannot be made
            continue
        except Exception as error:
            assert "does not exist" in str(error) or "not loaded" in str(error), error


MOVED = ("before rows go to a file", "before a schema", "before an index of the background")


@pytest.mark.parametrize(
    ("moment", "how"), [*((moment, "deleted") for moment in HOOKS), *((moment, "moved") for moment in MOVED)]
)
def test_nothing_is_written_into_the_folder_that_is_there_now(tmp_path, monkeypatch, moment, how):
    path = tmp_path / "steps.db"
    old = open_database(open_folder(str(path)))
    target, name = HOOKS[moment]
    where = target if not isinstance(target, str) else __import__(target, fromlist=["_"])
    before, new, at_first = getattr(where, name), [], []
    delete = shutil.rmtree
    first = threading.Lock()  # the moment may come in two threads at once

    def replace_folder(*args, **kwargs):
        if first.acquire(blocking=False):
            if how == "moved":
                os.rename(path, tmp_path / "moved")
            while path.exists():
                delete(path, ignore_errors=True)  # again, if a file was made meanwhile
            fresh.start()
            fresh.join()
        return before(*args, **kwargs)

    def make_new() -> None:
        new.append(open_database(open_folder(str(path))))
        new[0].create_collection("steps", schema()).insert(rows("new"))
        at_first.append(content(path))

    fresh = threading.Thread(target=make_new)
    monkeypatch.setattr(where, name, replace_folder)
    use_everything(old)
    monkeypatch.undo()
    assert first.locked(), "the moment never came"
    assert wait_until(lambda: fresh.ident is not None)
    fresh.join()
    assert content(path) == at_first[0]
    for collection in ("more", "renamed"):
        new[0].create_collection(collection, schema())  # none of them is there
    assert [row["id"] for row in new[0].get_collection("steps").query(None)] == ["new"]
    new[0].close()


def write_on(handle: MilvusHandle, stop: threading.Event, errors: list[str]) -> None:
    """A user who knows of nothing. What he is refused is that there is no such collection any more."""
    number = 0
    while not stop.is_set():
        number += 1
        try:
            handle.create("steps", [Field("id")], 4)
            handle.upsert("steps", [{"id": f"o{number}-{i}"} for i in range(50)], np.ones((50, 4), dtype=np.float32))
            if number % 3 == 0:
                handle.flush("steps")
            if number % 5 == 0:
                handle.set_index("steps", "HNSW" if number % 2 else "FLAT")
        except RetrievalError as error:
            errors.append(str(error))


def replace_again_and_again(path: Path, rounds: int, seed: int) -> list[str]:
    """Delete the folder while its server writes, and fill the next one at once. Returns what should not be."""
    wrong, rng = list[str](), random.Random(seed)
    for number in range(rounds):
        one, two = MilvusHandle(str(path), uri_key="uri"), MilvusHandle(str(path), uri_key="uri")
        stop, errors = threading.Event(), list[str]()
        one.create("steps", [Field("id")], 4)
        user = threading.Thread(target=write_on, args=(one, stop, errors))
        user.start()
        time.sleep(rng.uniform(0.0, 0.4))
        if number % 2:  # he leaves, too: his server is about to close
            stop.set()
            user.join()
            one.close()
            time.sleep(rng.uniform(0.0, 2.2))
        gone = path.with_name(f"gone{number}")
        os.rename(path, gone)  # as one step: who deletes files that are written to may have to do it twice
        shutil.rmtree(gone, ignore_errors=True)
        two.create("only_new", [Field("id")], 4)
        two.upsert("only_new", [{"id": f"n{number}"}], np.ones((1, 4), dtype=np.float32))
        stop.set()
        user.join()
        names = {place.name for place in (path / "collections").iterdir()}
        wrong += [error for error in errors if ("exists" in error and "not" not in error) or "File exists" in error]
        wrong += [f"round {number}: {names}"] if not {"only_new"} <= names <= {"only_new", "steps"} else []
        found = [row["id"] for row in two.get("only_new", [f"n{n}" for n in range(number + 1)], ["id"])]
        wrong += [f"round {number}: {found}"] if found != [f"n{number}"] else []
        two.drop("steps")
        two.drop("only_new")
        one.close()
        two.close()
    return wrong


def test_a_deleted_folders_server_answers_nobody(tmp_path):
    path = tmp_path / "of_a_user" / "steps.db"
    one = MilvusHandle(str(path), uri_key="uri")
    one.create("steps", [Field("id")], 4)
    one.upsert("steps", [{"id": "old"}], np.ones((1, 4), dtype=np.float32))
    old = read_endpoint(str(path)).pid
    os.rename(path, tmp_path / "gone.db")
    with pytest.raises(RetrievalError, match=r"collection not found|does not exist"):
        one.get("steps", ["old"], ["id"])
    assert not running(old) and read_endpoint(str(path)).pid != old
    last = read_endpoint(str(path)).pid
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    assert wait_until(lambda: not running(last))
    assert list(path.parent.iterdir()) == []
    one.close()


def test_a_folder_that_is_made_again_at_once_is_its_new_users_alone(tmp_path):
    assert replace_again_and_again(tmp_path / "steps.db", 2, 1) == []


@pytest.mark.slow
def test_a_folder_that_is_made_again_at_once_is_its_new_users_alone_many_times(tmp_path):
    assert replace_again_and_again(tmp_path / "steps.db", 40, 2) == []
