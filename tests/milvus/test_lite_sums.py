"""Milvus Lite's tables and logs: a bit that is not what was written is refused, wherever it lies."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from milvus_lite.storage import data_file
from milvus_lite.storage import wal as lite_wal
from milvus_lite.storage.wal import WAL

from rapo_rllib.milvus.lite.sums import DamagedFileError, compare_with_sums

SCHEMA = pa.schema([("_seq", pa.int64()), ("id", pa.string()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), 4))])
EVERY = 5  # bytes


@pytest.fixture(autouse=True)
def as_the_server_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((data_file, "pq"), (lite_wal, "pa"), (lite_wal, "_read_wal_file")):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    compare_with_sums()


def batch(first: int) -> pa.RecordBatch:
    rows = [{"_seq": n, "id": f"r{n}", "text": "é" * n, "vector": [0.5, 1.0, -1.0, float(n)]} for n in range(first, first + 20)]
    rows[3]["text"] = None
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def written_log(folder: Path) -> Path:
    log = WAL(str(folder), SCHEMA, SCHEMA, 1)
    log.write_insert(batch(0))
    log.write_insert(batch(20).slice(2, 9))
    assert log.data_path is not None
    return Path(log.data_path)


def flips(file: Path, read: Callable[[], object]) -> list[object]:
    """What is read, or the refusal, with one bit changed, at every fifth byte."""
    whole, found, rng = file.read_bytes(), [], random.Random(1)
    for at in range(0, len(whole), EVERY):
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        try:
            found.append(read())
        except DamagedFileError as error:
            assert str(file) in str(error)
            found.append(None)
    file.write_bytes(whole)
    return found


def test_a_log(tmp_path: Path) -> None:
    file, expected = written_log(tmp_path), [batch(0), batch(20).slice(2, 9)]
    assert lite_wal._read_wal_file(str(file)) == expected
    found = flips(file, lambda: lite_wal._read_wal_file(str(file)))
    assert found.count(None) > len(found) // 2
    assert all(one is None or one == expected[: len(one)] for one in found)  # cut short, as after a kill: the ledger knows
    assert lite_wal._read_wal_file(str(file)) == expected


def test_a_log_cut_short_is_read_up_to_there(tmp_path: Path) -> None:
    file = written_log(tmp_path)
    os.truncate(file, file.stat().st_size - 100)
    assert lite_wal._read_wal_file(str(file)) == [batch(0)]


def test_a_table(tmp_path: Path) -> None:
    table = pa.Table.from_batches([batch(0), batch(20)])
    file = tmp_path / data_file.write_data_file(table, str(tmp_path), 0, 39)
    assert data_file.read_data_file(str(file)).equals(table)
    assert set(flips(file, lambda: data_file.read_data_file(str(file)))) == {None}
    assert data_file.read_data_file(str(file)).equals(table)
    file.unlink()
    data_file.write_data_file(table, str(tmp_path), 40, 79)
    assert [note.name for note in (tmp_path / "sums").iterdir()] == ["data_000040_000079.parquet.json"]


def test_a_table_of_before_there_were_sums(tmp_path: Path) -> None:
    table = pa.Table.from_batches([batch(0)])
    file = tmp_path / data_file.write_data_file(table, str(tmp_path), 0, 19)
    (tmp_path / "sums" / f"{file.name}.json").unlink()
    assert data_file.read_data_file(str(file)).equals(table)
