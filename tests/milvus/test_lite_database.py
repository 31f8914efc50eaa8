"""What a Milvus Lite folder keeps through kills, full disks and damage. A kill is mostly ``abandon``: nothing goes to files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from milvus_lite.engine import collection as lite_collection
from milvus_lite.storage.manifest import Manifest
from milvus_lite.storage.wal import WAL
from places import REPOSITORY

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.lite import database as databases
from rapo_rllib.milvus.lite.database import Database
from rapo_rllib.milvus.lite.owner import Owner
from rapo_rllib.milvus.schema import Field

FIELDS = [Field("id", max_bytes=64), Field("text"), Field("reward", "DOUBLE"), Field("step", "INT64")]
DIM = 4


def rows_of(*numbers: int, text: str = "as written") -> list[dict[str, Any]]:
    return [{"id": f"r{n}", "text": f"row {n} {text}", "reward": n / 8, "step": n} for n in numbers]


def vectors_of(*numbers: int) -> np.ndarray:
    return np.array([[n, 1, 2, 3] for n in numbers], dtype=np.float32)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(str(tmp_path / "steps.db"), "uri")
    owner.create("steps", FIELDS, DIM, words_of="text")
    yield owner
    owner.close()


def write(owner: Owner, *numbers: int, text: str = "as written") -> None:
    owner.upsert("steps", rows_of(*numbers, text=text), vectors_of(*numbers))


def kill(owner: Owner) -> None:
    owner._abandon()


def texts(owner: Owner) -> dict[str, str]:
    page, rest = owner.page("steps", ["id", "text"], None, 1000)
    assert rest is None and len(page) == owner.count("steps")
    return {row["id"]: row["text"] for row in page}


def expected(*numbers: int, text: str = "as written") -> dict[str, str]:
    return {row["id"]: row["text"] for row in rows_of(*numbers, text=text)}


def worded(owner: Owner, text: str = "row") -> list[str]:
    return sorted(row["id"] for row in owner.search_words("steps", [text], 100, ["id"])[0])


def test_a_kill_at_any_moment_loses_no_acknowledged_row(tmp_path: Path) -> None:
    """Of a process; with limits so small that rows go to files and files are merged all the time."""
    program = """
import sys, numpy as np
from rapo_rllib.milvus.handle import milvus_at
from rapo_rllib.milvus.schema import Field
milvus = milvus_at(sys.argv[1], uri_key="uri")
milvus.create("steps", [Field("id"), Field("text")], 4)
number = 0
while True:
    milvus.upsert("steps", [{"id": f"r{number}", "text": "x" * 900}], np.ones((1, 4), dtype=np.float32))
    print(number, flush=True)
    number += 1
    if number % 7 == 0:
        milvus.delete("steps", [f"r{number - 7}"])
        print(-(number - 7), flush=True)
"""
    limits = {"MILVUS_LITE_MEMTABLE_MEMORY_LIMIT_BYTES": "20000", "MILVUS_LITE_WAL_SIZE_LIMIT_BYTES": "40000"}
    environment = {**os.environ, **limits, "PYTHONPATH": str(REPOSITORY)}
    path = str(tmp_path / "steps.db")
    process = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(150)]
    process.send_signal(signal.SIGKILL)
    told += [int(line) for line in process.stdout.read().split()]
    process.stdout.close()
    process.wait()
    gone = {-number for number in told if number <= 0}  # r0 is gone since the seventh
    there = {number for number in told if number > 0} - gone
    owner = Owner(path, "uri")
    found = {row["id"] for row in owner.page("steps", ["id"], None, 1000)[0]}
    last = max(told)
    assert {f"r{number}" for number in there - {last - 6, last}} <= found  # the next ones may have been under way
    assert not {f"r{number}" for number in gone} & found and len(found) <= len(there) + 2
    owner.close()


def test_rows_of_files_and_log_are_there_again(owner: Owner) -> None:
    write(owner, 1, 2, 3)
    owner.flush("steps")
    write(owner, 3, 4, text="again")
    owner.delete("steps", ["r1"])
    kill(owner)
    assert texts(owner) == expected(2) | expected(3, 4, text="again")
    assert worded(owner) == ["r2", "r3", "r4"] and worded(owner, "again") == ["r3", "r4"]
    owner.delete("steps", ["r4"])
    owner.flush("steps")
    kill(owner)
    assert texts(owner) == expected(2) | expected(3, text="again")
    (hits,) = owner.search("steps", vectors_of(2), 1, ["id", "reward", "step"], "exact")
    assert hits == [{"id": "r2", "reward": 0.25, "step": 2, "similarity": pytest.approx(1.0)}]


def test_writes_are_synced_and_files_are_before_their_manifest_names_them(owner: Owner, monkeypatch) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    write(owner, 1)
    assert any("/steps/wal/wal_data_" in file for file in synced)
    synced.clear()
    owner.delete("steps", ["r1"])
    assert any("/steps/wal/wal_delta_" in file for file in synced)
    write(owner, 2)
    synced.clear()
    real_save = Manifest.save
    monkeypatch.setattr(Manifest, "save", lambda self: (synced.append("manifest"), real_save(self))[1])
    owner.flush("steps")
    files = [str(file) for file in Path(owner.path).glob("collections/steps/partitions/*/d*/*.parquet")]
    assert len(files) == 2 and all(synced.index(file) < synced.index("manifest") for file in files)
    assert str(Path(files[0]).parent) in synced
    synced.clear()
    kill(owner)
    write(owner, 3)
    owner.flush("steps")
    assert not set(files) & set(synced[: synced.index("manifest")])  # they are there already


def test_a_folder_that_lost_a_file_takes_rows_again(owner: Owner) -> None:
    write(owner, 1)
    owner.flush("steps")
    next(Path(owner.path).glob("collections/steps/partitions/*/data/*.parquet")).unlink()
    kill(owner)
    write(owner, 2)
    owner.flush("steps")
    kill(owner)
    assert texts(owner) == expected(2)


def test_a_log_that_was_not_deleted_after_its_rows_went_to_files(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    write(owner, 1, 2)
    monkeypatch.setattr(WAL, "close_and_delete", lambda self: (_ for _ in ()).throw(OSError(errno.EIO, "a kill")))
    with pytest.raises(RetrievalError, match="a kill"):
        owner.flush("steps")
    monkeypatch.undo()
    assert list(Path(owner.path).glob("collections/steps/wal/*"))
    write(owner, 3)
    owner.flush("steps")
    kill(owner)
    assert texts(owner) == expected(1, 2, 3) and worded(owner) == ["r1", "r2", "r3"]


def test_half_a_record_in_the_log_hides_nothing(owner: Owner) -> None:
    write(owner, 1, 2)
    kill(owner)
    (log,) = Path(owner.path).glob("collections/steps/wal/wal_data_*")
    with log.open("ab") as file:
        file.write(log.read_bytes()[-300:-50])
    assert texts(owner) == expected(1, 2)
    write(owner, 3)
    kill(owner)
    assert texts(owner) == expected(1, 2, 3)


def test_a_write_that_failed_halfway_hides_nothing(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    write(owner, 1)
    real = WAL.write_insert

    def torn(self: WAL, batch: Any) -> None:
        real(self, batch)
        os.ftruncate(self._data_sink.fileno(), self._data_sink.tell() - 100)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(WAL, "write_insert", torn)
        with pytest.raises(RetrievalError, match=r"refused upsert .*No space left.*make room on the disk, then do the same"):
            write(owner, 2)
    assert texts(owner) == expected(1)
    write(owner, 3)
    kill(owner)
    assert texts(owner) == expected(1, 3)


def test_a_disk_that_takes_no_file_costs_no_row(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    write(owner, 1, 2)
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        patch.setattr(lite_collection, "execute_flush", lambda **_: (_ for _ in ()).throw(full))
        with pytest.raises(RetrievalError, match="make room on the disk"):
            owner.flush("steps")
        assert texts(owner) == expected(1, 2)
    write(owner, 3)
    owner.flush("steps")
    kill(owner)
    assert texts(owner) == expected(1, 2, 3)


@pytest.mark.parametrize("left", [[], ["schema.json.tmp"]])
def test_a_collection_that_a_kill_left_half_made_can_be_made(owner: Owner, left: list[str]) -> None:
    kill(owner)
    folder = Path(owner.path) / "collections" / "other"
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{")
    assert not owner.exists("other")
    owner.create("other", FIELDS, DIM, None)
    assert owner.exists("other") and owner.count("other") == 0


def test_a_folder_that_lost_its_schema_is_not_taken_for_half_made(owner: Owner) -> None:
    write(owner, 1)
    kill(owner)
    (Path(owner.path) / "collections" / "steps" / "schema.json").unlink()
    with pytest.raises(RetrievalError, match="refused create on collection 'steps'"):
        owner.create("steps", FIELDS, DIM, None)
    assert list(Path(owner.path).glob("collections/steps/wal/wal_data_*"))


def test_a_damaged_collection_keeps_nobody_from_the_others_and_no_lock(owner: Owner) -> None:
    owner.create("other", FIELDS, DIM, None)
    write(owner, 1)
    owner.close()
    for file in Path(owner.path).glob("collections/steps/manifest.json*"):
        file.write_bytes(b"rot")
    assert owner.count("other") == 0
    with pytest.raises(RetrievalError, match=r"refused open on collection 'steps': .*restore a copy"):
        owner.count("steps")


def test_an_opening_that_fails_leaves_no_lock(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    write(owner, 1)
    for name in ("_mend", "MilvusLite._cleanup_database_staging"):
        owner.close()
        with monkeypatch.context() as patch:
            place = databases if name == "_mend" else databases.MilvusLite
            patch.setattr(place, name.split(".")[-1], lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            with pytest.raises(RetrievalError, match="full"):
                owner.count("steps")
        assert owner.count("steps") == 1


def test_what_is_in_memory_is_what_is_read_again(owner: Owner) -> None:
    owner.upsert("steps", [{"id": "r1", "text": "a", "reward": np.float64(1), "step": np.int64(2)}], vectors_of(1))
    before = owner.get("steps", ["r1"], ["reward", "step"])
    kill(owner)
    assert repr(owner.get("steps", ["r1"], ["reward", "step"])) == repr(before) == "[{'reward': 1.0, 'step': 2}]"


def test_a_kill_halfway_through_dropping_leaves_nothing(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    write(owner, 1)
    with monkeypatch.context() as patch:
        patch.setattr(databases.shutil, "rmtree", lambda folder: (_ for _ in ()).throw(OSError("a kill")))
        with pytest.raises(RetrievalError, match="refused drop"):
            owner.drop("steps")
    assert not owner.exists("steps")
    owner.create("steps", FIELDS, DIM, None)
    assert owner.count("steps") == 0 and not list(Path(owner.path).glob("**/dropped-*"))


def test_a_row_that_is_not_what_was_written_is_refused(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(databases, "row_sum", lambda values, vector: 7)
        write(owner, 1)
    kill(owner)
    with pytest.raises(RetrievalError, match=r"row 'r1' is not what was written\. If files in its folder are damaged: restore"):
        owner.count("steps")


def test_any_change_of_a_row_changes_its_sum() -> None:
    values, vector = ("id", "text", 0.5, 3), np.array([1, 2], dtype=np.float32)
    sums = {databases.row_sum(values, vector), databases.row_sum(values, vector + 1)}
    sums |= {databases.row_sum((*values[:place], other, *values[place + 1 :]), vector) for place, other in enumerate("abcd")}
    assert len(sums) == 6 and databases.row_sum(list(values), vector.copy()) in sums


def test_what_another_program_made_is_refused_and_others_can_read_ours(owner: Owner) -> None:
    from pymilvus import MilvusClient

    write(owner, 1, 2)
    owner.close()
    client = MilvusClient(owner.path)
    client.load_collection("steps")
    assert client.query("steps", filter='id == "r2"', output_fields=["text"])[0]["text"] == "row 2 as written"
    client.create_collection("theirs", dimension=4, id_type="string", max_length=20)
    client.close()
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_all()
    with pytest.raises(RetrievalError, match="'theirs' has no column 'row_sum': an earlier version or another program made it"):
        owner.count("theirs")


def test_what_is_in_files_is_opened_by_the_next(tmp_path: Path) -> None:
    first = Database(str(tmp_path / "steps.db"))
    first.make("steps", FIELDS, DIM, None)
    first.write("steps", rows_of(1, 2), vectors_of(1, 2))
    first.close()
    second = Database(first.path)
    (found,) = second.content("steps")
    assert found[0] == rows_of(1, 2) and np.array_equal(found[1], vectors_of(1, 2))
    assert second.fields("steps") == (FIELDS, DIM)
    second.close()
