"""What Milvus Lite's engine keeps when it is used by many at once, and when a kill meets it in the middle.

A copy of the folder is what a kill at that moment leaves: what was handed to the operating system, and nothing else.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from milvus_lite.db import MilvusLite
from milvus_lite.engine import collection as engine
from milvus_lite.exceptions import IndexAlreadyExistsError
from milvus_lite.schema.types import CollectionSchema, DataType, FieldSchema
from milvus_lite.storage.manifest import Manifest
from milvus_lite.storage.wal import WAL

from rapo_rllib.milvus.library import pymilvus_module
from rapo_rllib.milvus.lite.engine import SafeCollection, open_database
from rapo_rllib.milvus.lite.server import start_grpc

DIM = 4
FLAT = {"index_type": "FLAT", "metric_type": "COSINE"}


def schema() -> CollectionSchema:
    key = FieldSchema("id", DataType.VARCHAR, is_primary=True, max_length=100)
    return CollectionSchema([key, FieldSchema("number", DataType.INT64), FieldSchema("vector", DataType.FLOAT_VECTOR, dim=DIM)])


def rows(*numbers: int, prefix: str = "") -> list[dict]:
    return [{"id": f"{prefix}{n}", "number": n, "vector": [1.0, n, n * n % 7, 1.0]} for n in numbers]


def ids(collection: SafeCollection) -> list[str]:
    return sorted(row["id"] for row in collection.query(None, output_fields=["id"]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "steps.db"


@pytest.fixture
def database(place: Path):
    database = open_database(str(place))
    yield database
    database.close()


@pytest.fixture
def steps(database) -> SafeCollection:
    return database.create_collection("steps", schema())


@pytest.fixture
def killed(place: Path, tmp_path: Path):
    """Opens what a kill would leave now."""
    opened: list[MilvusLite] = []

    def copy_and_open() -> MilvusLite:
        copy = Path(shutil.copytree(place, tmp_path / f"copy{len(opened)}.db"))
        opened.append(open_database(str(copy)))
        return opened[-1]

    yield copy_and_open
    for database in opened:
        database.close()


def at_once(*calls: Callable[[], None]) -> None:
    """Run them in threads; raise what the first one raised."""
    errors: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]


def test_requests_that_meet_open_a_collection_once(place, database, steps, monkeypatch):
    steps.insert(rows(1))
    database.close()
    second = open_database(str(place))
    second._collections.clear()  # as one that is opened later, because it could not be opened at the start
    start, load = threading.Barrier(4), Manifest.load
    monkeypatch.setattr(Manifest, "load", lambda folder: (threading.Event().wait(0.05), load(folder))[1])
    found = []

    def ask() -> None:
        start.wait(10)
        found.append(second.get_collection("steps"))

    at_once(*[ask] * 4)
    assert len(found) == 4 and len({id(one) for one in found}) == 1
    second.close()


def test_every_collection_is_open_before_anybody_asks(place, database, steps):
    database.create_database("mine")
    database.create_collection("others", schema(), database_name="mine")
    damaged = database.create_collection("damaged", schema())
    damaged.insert(rows(1))
    damaged.flush()
    database.close()
    (file,) = place.glob("collections/damaged/partitions/_default/data/*.parquet")
    file.write_bytes(b"rot")
    second = open_database(str(place))
    assert set(second._collections) == {("default", "steps"), ("mine", "others")}
    assert set(second._aliases_by_db) == {"default", "mine"}
    with pytest.raises(Exception, match="Parquet"):
        second.get_collection("damaged")
    second.close()


def test_writers_that_meet_keep_every_row_and_readers_see_all_of_them(steps, killed, monkeypatch):
    monkeypatch.setattr(engine, "MEMTABLE_MEMORY_LIMIT", 6000)  # rows go to files in the middle of it, and files are merged
    written: list[str] = []

    def write(writer: int) -> None:
        for number in range(0, 240, 4):
            batch = rows(*range(number, number + 4), prefix=f"{writer}-")
            steps.upsert(batch)
            written.extend(row["id"] for row in batch)

    def read() -> None:
        while len(written) < 3 * 240:
            before = set(written)
            found = ids(steps)
            assert before <= set(found) and len(found) == len(set(found))
            assert steps.num_entities >= len(before)
            some = sorted(before)[:40]
            assert [row["id"] for row in steps.get(some)] == some

    at_once(read, *[lambda writer=writer: write(writer) for writer in range(3)])
    assert ids(steps) == sorted(written)
    assert ids(killed().get_collection("steps")) == sorted(written)


@pytest.mark.parametrize("way", ["get", "query", "search", "count"])
def test_rows_that_go_to_files_while_one_reads_are_found(steps, monkeypatch, way):
    steps.insert(rows(1, 2, 3))
    look, moved = steps._read_snapshot, []

    def look_then_flush():
        files = look()
        if not moved:
            moved.append(True)
            steps.flush()
        return files

    monkeypatch.setattr(steps, "_read_snapshot", look_then_flush)
    found = {
        "get": lambda: len(steps.get(["1", "2", "3"])),
        "query": lambda: len(ids(steps)),
        "search": lambda: len(steps.search([[1.0, 1.0, 1.0, 1.0]], top_k=5, metric_type="COSINE")[0]),
        "count": lambda: steps.num_entities,
    }[way]()
    assert moved and found == 3


@pytest.mark.parametrize("where", ["write_data_file", "save"])
def test_a_disk_that_takes_no_file_costs_no_row(steps, killed, monkeypatch, where):
    steps.insert(rows(1, 2))
    steps.flush()
    steps.insert(rows(2, 3))
    steps.delete(["1"])

    def full(*_, **__) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = Manifest if where == "save" else "milvus_lite.engine.flush"
    if where == "save":
        monkeypatch.setattr(target, where, full)
    else:
        monkeypatch.setattr(f"{target}.{where}", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            steps.flush()
    assert ids(steps) == ["2", "3"]
    steps.upsert(rows(4))
    monkeypatch.undo()
    assert ids(killed().get_collection("steps")) == ["2", "3", "4"]
    steps.flush()
    assert ids(steps) == ["2", "3", "4"] and len(steps._manifest.get_data_files("_default")) == 2
    assert ids(killed().get_collection("steps")) == ["2", "3", "4"]


def test_a_log_that_cannot_be_deleted_costs_and_doubles_no_row(steps, killed, monkeypatch):
    steps.insert(rows(1, 2))

    def refused(log: WAL) -> None:
        log._closed = True
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(WAL, "close_and_delete", refused)
    steps.flush()
    monkeypatch.undo()
    steps.insert(rows(3))
    for collection in (steps, killed().get_collection("steps")):
        assert ids(collection) == ["1", "2", "3"] and collection.num_entities == 3


def test_what_follows_half_a_record_in_the_log_is_read_again(steps, killed, monkeypatch):
    steps.insert(rows(1))
    write = WAL.write_insert

    def half(log: WAL, batch) -> None:
        log._data_sink.write(b"\xff\xff\xff\xff\x10")
        log._data_sink.flush()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(WAL, "write_insert", half)
    with pytest.raises(OSError, match="No space left"):
        steps.insert(rows(2))
    monkeypatch.setattr(WAL, "write_insert", write)
    assert steps._recovered_wal_bytes > 0  # the old log still counts: it is to be gone in time
    steps.insert(rows(3))
    assert ids(killed().get_collection("steps")) == ["1", "3"]
    steps.flush()
    assert WAL.find_wal_files(os.path.join(steps.data_dir, "wal")) == []
    assert ids(killed().get_collection("steps")) == ["1", "3"]


def test_a_closed_collection_takes_nothing_and_comes_not_back(place, database, steps):
    database.drop_collection("steps")
    with pytest.raises(AssertionError):
        steps.insert(rows(1))
    assert not (place / "collections/steps").exists()


@pytest.mark.parametrize("half", [False, True], ids=["before the log is deleted", "between its two files"])
def test_a_kill_after_rows_went_to_files_doubles_and_hides_nothing(steps, killed, monkeypatch, half):
    steps.insert(rows(1, 2))
    steps.delete(["1"])
    steps.insert(rows(1))
    delete, left = WAL.close_and_delete, []

    def killed_here(log: WAL) -> None:
        if half:
            os.unlink(log.data_path)
        left.append(killed())
        delete(log)

    monkeypatch.setattr(WAL, "close_and_delete", killed_here)
    steps.flush()
    monkeypatch.undo()
    after = left[0].get_collection("steps")
    assert ids(after) == ["1", "2"] and after.num_entities == 2
    assert [row["id"] for row in after.get(["1", "2"])] == ["1", "2"]


@pytest.mark.parametrize("kind", ["FLAT", "HNSW"])
def test_half_a_file_of_an_index_is_made_anew(place, steps, killed, kind):
    steps.create_index("vector", {"index_type": kind, "metric_type": "COSINE"})
    steps.insert(rows(*range(30)))
    steps.flush()
    steps.load()
    steps._wait_for_bg()
    (file,) = place.glob("collections/steps/partitions/_default/indexes/*")
    for size in (0, 10, file.stat().st_size // 2):
        os.truncate(file, size)
        after = killed().get_collection("steps")
        after.load()
        assert after.search([rows(7)[0]["vector"]], top_k=1)[0][0]["id"] == "7"


@pytest.mark.parametrize("left", [[], ["schema.json.tmp"]])
def test_a_collection_that_a_kill_left_half_made_can_be_made(place, database, left):
    folder = place / "collections/steps"
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{")
    database.create_collection("steps", schema()).insert(rows(1))
    assert ids(database.get_collection("steps")) == ["1"]


def test_a_folder_that_lost_its_schema_is_not_taken_for_half_made(place, database, steps):
    steps.insert(rows(1))
    steps.flush()
    database.close()
    (place / "collections/steps/schema.json").unlink()
    second = open_database(str(place))
    with pytest.raises(FileExistsError):
        second.create_collection("steps", schema())
    second.close()
    assert list(place.glob("collections/steps/partitions/_default/data/*.parquet"))


def test_a_collection_that_a_kill_left_half_dropped_is_gone_and_can_be_made(place, database, steps, killed, monkeypatch):
    steps.insert(rows(1))
    database.create_alias("steps", "other_name")

    def deleted_in_part(folder: str) -> None:
        if "dropped-" in folder:  # the files of a folder go in no particular order
            os.unlink(Path(folder, "schema.json"))
            raise OSError("killed")

    monkeypatch.setattr(shutil, "rmtree", deleted_in_part)
    with pytest.raises(OSError, match="killed"):
        database.drop_collection("steps")
    monkeypatch.undo()
    after = killed()
    assert not after.has_collection("steps") and after.list_aliases() == []
    assert not list(Path(after.data_dir, ".database-staging").iterdir())
    after.create_collection("steps", schema()).insert(rows(2))
    assert ids(after.get_collection("steps")) == ["2"]


def test_what_its_caller_has_given_up_is_not_done_later(database, steps):
    server, port = start_grpc(database, 0, lambda: True)
    client = pymilvus_module().MilvusClient(uri=f"http://127.0.0.1:{port}", dedicated=True)
    client.upsert("steps", rows(1), timeout=60)
    with steps._writing, database._opening:  # as somebody who takes long
        with pytest.raises(Exception, match=r"DEADLINE|Deadline|deadline"):
            client.upsert("steps", rows(2), timeout=0.3)
        with pytest.raises(Exception, match=r"DEADLINE|Deadline|deadline"):
            client.drop_collection("steps", timeout=0.3)
    client.upsert("steps", rows(3), timeout=60)
    server.stop(grace=30).wait()  # nothing waits any more
    assert ids(database.get_collection("steps")) == ["1", "3"]
    client.close()


def test_a_call_may_be_repeated_whose_answer_was_lost(steps):
    for _ in range(2):
        steps.create_index("vector", FLAT)
    with pytest.raises(IndexAlreadyExistsError):
        steps.create_index("vector", {**FLAT, "index_type": "HNSW"})
    steps.release()
    for _ in range(2):
        steps.drop_index("vector")
    assert not steps.has_index()
