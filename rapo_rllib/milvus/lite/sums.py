"""Have Milvus Lite's files compared with sums when they are read: it would take any byte for what was written.

    tables (Parquet), indexes    size and sum of each file, in ``sums/`` beside their folders
    log (Arrow)                  a sum per batch, in the batch's own metadata

What was written before there were sums is taken as it is.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from milvus_lite.storage import data_file, delta_file, wal

from rapo_rllib.checkpoints.folder import sums
from rapo_rllib.services.json_files import read_json

_SUM = b"crc32"


class DamagedFileError(Exception):
    """A file of a Lite folder is not what was written."""


def compare_with_sums() -> None:
    """Make Lite keep sums of its tables and logs from now on, and compare with them."""
    data_file.pq = delta_file.pq = SimpleNamespace(write_table=_write_table, read_table=_read_table)
    wal.pa = SimpleNamespace(**{**vars(pa), "ipc": SimpleNamespace(new_stream=_SummedWriter)})
    wal._read_wal_file = _batches


def keep_sum(file: Path) -> None:
    """Note size and sum of a file that was just written, and forget those of files that are gone."""
    note = _note(file)
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps(sums(file.parent, [file.name])[file.name]))
    for other in note.parent.iterdir():
        if not any(file.parent.parent.glob(f"*/{other.stem}")):
            other.unlink(missing_ok=True)


def refuse_other(file: Path) -> None:
    """Raise ``DamagedFileError`` where a file is not what was noted."""
    note = _note(file)
    try:
        damaged = file.exists() and note.exists() and read_json(note, [int]) != sums(file.parent, [file.name])[file.name]
    except ValueError as error:
        raise DamagedFileError(str(error)) from error
    if damaged:
        what = "Parquet table" if file.suffix == ".parquet" else "index"
        raise DamagedFileError(f"{file} is damaged: it is not the {what} that was written")


def _note(file: Path) -> Path:
    return file.parent.parent / "sums" / f"{file.name}.json"


def _write_table(table: pa.Table, path: str) -> None:
    pq.write_table(table, path)
    keep_sum(Path(path))


def _read_table(path: str) -> pa.Table:
    refuse_other(Path(path))
    return pq.read_table(path)


class _SummedWriter:
    """Writes a stream of batches, each with its sum."""

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        self._writer = pyarrow.ipc.new_stream(sink, schema)
        self.close = self._writer.close

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch, custom_metadata={_SUM: _sum_of(batch)})


def _batches(path: str) -> list[pa.RecordBatch]:
    """Read a log up to a batch that was cut short, which a kill leaves; one that has another sum is refused."""
    found: list[pa.RecordBatch] = []
    if not Path(path).exists():
        return found
    with pa.OSFile(path, "rb") as source:
        try:
            reader = pyarrow.ipc.open_stream(source)
            while True:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
                if metadata is None or _SUM not in metadata:
                    batch.validate(full=True)
                elif not _is_sound(batch, metadata[_SUM]):
                    raise DamagedFileError(f"{path} is damaged: batch {len(found)} of the log is not what was written")
                found.append(batch)
        except (StopIteration, pa.ArrowException, OSError):
            return found


def _is_sound(batch: pa.RecordBatch, noted: bytes) -> bool:
    try:
        batch.validate(full=True)  # first: Arrow would follow wrong offsets anywhere
    except pa.ArrowInvalid:
        return False
    return _sum_of(batch) == noted


def _sum_of(batch: pa.RecordBatch) -> bytes:
    return b"%08x" % zlib.crc32(batch.serialize(), zlib.crc32(str(batch.schema).encode()))
