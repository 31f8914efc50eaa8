"""Storage of rows in a Milvus Lite folder, which only this process has open. Flow: ``owner.py`` makes one call at a time.

These faults of milvus-lite 3.2 are repaired here, so that it keeps every row that it has acknowledged:

    a log is read again although its rows are in files already, as after a kill   -> the log is deleted at opening
    a half-made collection prevents another one of its name                       -> its folder is deleted at opening
    a half-deleted collection is still read                                       -> a collection is renamed before deletion
    a write that failed halfway hides later entries of the log                    -> the folder is opened anew
    logs, and files that a manifest names, may not be on the disk yet             -> they are synced
    a byte that changed on the disk is read as part of a row or a key             -> each row has a checksum
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import milvus_lite.engine.collection as milvus_lite_collection
import numpy as np
import pyarrow as pa
from milvus_lite.adapter.grpc.translators.schema import milvus_to_milvus_lite_schema
from milvus_lite.db import MilvusLite
from milvus_lite.engine.collection import Collection
from milvus_lite.exceptions import ManifestCorruptedError
from milvus_lite.storage.manifest import Manifest
from milvus_lite.storage.wal import WAL

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.schema import BM25_PARAMS, SCALARS, TERMS, VECTOR, Field, collection_schema

SUM = Field("row_sum", "INT64")  # checksum of a row's other columns and its vector
KINDS = {"VARCHAR": str, "INT64": int, "DOUBLE": float}
INDEXES = {
    VECTOR: {"index_type": "FLAT", "metric_type": "COSINE"},
    TERMS: {"index_type": "SPARSE_INVERTED_INDEX", "metric_type": "BM25", "params": BM25_PARAMS},
}  # which other programs find when they open the folder


class SyncedLog(WAL):  # type: ignore[misc]
    """Lite's log, synced to the disk before a write is acknowledged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "sync_mode": "batch"})


class SyncedManifest(Manifest):  # type: ignore[misc]
    """Lite's list of files. New files are synced before it names them, since logs and older files are deleted afterwards."""

    _synced: frozenset[Path] = frozenset()

    @classmethod
    def load(cls, data_dir: str) -> SyncedManifest:
        """Read the list. The files that it names already are not synced again: they were synced, or are lost."""
        manifest: SyncedManifest = super().load(data_dir)
        manifest._synced = manifest._files()
        return manifest

    def save(self) -> None:
        """Sync the new files, and write the list."""
        files = self._files()
        for file in files - self._synced:
            for place in (file, file.parent):
                opened = os.open(place, os.O_RDONLY)
                try:
                    os.fsync(opened)
                finally:
                    os.close(opened)
        super().save()
        self._synced = files

    def _files(self) -> frozenset[Path]:
        named = [*self.get_all_data_files().items(), *self.get_all_delta_files().items()]
        root = Path(self.data_dir, "partitions")
        return frozenset(root / partition / name for partition, names in named for name in names)


class Database:
    """An open Milvus Lite folder.

    Raises:
        milvus_lite.exceptions.DataDirLockedError: another process has it open.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        milvus_lite_collection.WAL, milvus_lite_collection.Manifest = SyncedLog, SyncedManifest
        self._lite = MilvusLite.__new__(MilvusLite)
        try:
            self._lite.__init__(path)  # type: ignore[misc]
            for folder in self._folders():
                _mend(folder)
        except BaseException:  # MilvusLite's own __init__ may fail, too, after it took the lock
            if getattr(self._lite, "_lock_fd", None) is not None:
                self._lite._release_lock()
            raise

    def is_elsewhere(self) -> bool:
        """Return whether the folder was deleted or replaced by another one, so that writes would be lost."""
        try:
            return os.stat(self._lite._lock_path).st_ino != os.fstat(self._lite._lock_fd).st_ino
        except FileNotFoundError:
            return True

    def has(self, name: str) -> bool:
        """Return whether the collection exists."""
        return bool(self._lite.has_collection(name))

    def make(self, name: str, fields: Sequence[Field], dim: int, words_of: str | None) -> None:
        """Make a collection that does not exist yet; see ``MilvusHandle.create``."""
        from pymilvus.client.prepare import Prepare

        schema = collection_schema([*fields, SUM], dim, words_of)
        wire = Prepare.get_schema_from_collection_schema(name, schema)
        collection = self._lite.create_collection(name, milvus_to_milvus_lite_schema(wire))
        self._have_indexes(collection)

    def fields(self, name: str) -> tuple[list[Field], int]:
        """Return the scalar columns without the checksum, the primary key first, and the width of the vectors.

        Raises:
            RetrievalError: the collection has no checksums: an earlier version or another program made it.
        """
        found, dim = [], 0
        for field in self._collection(name).schema.fields:
            if field.dtype.name in SCALARS:
                size = {"max_bytes": field.max_length} if field.max_length else {}
                found.append((not field.is_primary, Field(field.name, field.dtype.name, **size)))
            elif field.name == VECTOR:
                dim = field.dim
        columns = [field for _, field in sorted(found, key=lambda one: one[0]) if field.name != SUM.name]
        if len(columns) == len(found):
            raise RetrievalError(
                f"Milvus at {self.path}: the collection {name!r} has no column {SUM.name!r}: an earlier version or another "
                "program made it. Build it anew in another folder."
            )
        return columns, dim

    def write(self, name: str, rows: Sequence[dict[str, Any]], vectors: np.ndarray) -> list[dict[str, Any]]:
        """Write whole rows ``[N]`` with vectors ``[N, D]``; the later of two rows with the same key counts.

        Returns the rows as they will be read.
        """
        columns, _ = self.fields(name)
        stored, written = [], []
        for row, vector in zip(rows, np.ascontiguousarray(vectors, dtype=np.float32), strict=True):
            values = [KINDS[field.kind](row[field.name]) for field in columns]
            named = dict(zip((field.name for field in columns), values, strict=True))
            written.append(named)
            stored.append({**named, SUM.name: row_sum(values, vector), VECTOR: vector.tolist()})
        self._collection(name).insert(stored)
        return written

    def delete(self, name: str, ids: Sequence[str]) -> None:
        """Delete the rows with these keys; a key without a row is no error."""
        self._collection(name).delete(list(ids))

    def content(self, name: str) -> Iterator[tuple[list[dict[str, Any]], np.ndarray]]:
        """Yield all rows with their vectors, file by file.

        Raises:
            RetrievalError: a row is not what was written.
        """
        columns, dim = self.fields(name)
        names = [field.name for field in columns]
        for table in _latest(self._collection(name), names[0]):
            values = [table.column(column).to_pylist() for column in names]
            vectors = table.column(VECTOR).combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
            rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
            for row, vector, noted in zip(zip(*values, strict=True), vectors, table.column(SUM.name).to_pylist(), strict=True):
                if row_sum(row, vector) != noted:
                    raise RetrievalError(f"row {row[0]!r} is not what was written")
            yield rows, vectors

    def search_words(self, name: str, texts: Sequence[str], top_k: int) -> list[list[tuple[str, float]]]:
        """Find for each text the keys of the ``top_k`` rows that match it best by BM25, with their scores, best first."""
        collection = self._collection(name)
        collection.load()
        found = collection.search(list(texts), top_k=top_k, anns_field=TERMS, output_fields=[])
        return [[(hit["id"], abs(float(hit["distance"]))) for hit in hits] for hits in found]

    def flush(self, name: str) -> None:
        """Write all rows to files, since Lite indexes rows in the log anew for every search by words."""
        self._collection(name).flush()

    def drop(self, name: str) -> None:
        """Delete a collection. After a kill it is either whole or gone."""
        opened = self._lite._collections.get(("default", name))
        if opened is not None:
            opened.close()
            del self._lite._collections["default", name]
        dropped = tempfile.mkdtemp(prefix="dropped-", dir=self._lite._database_staging_root())  # emptied at the next opening
        os.rename(self._lite._collection_dir(name), dropped)
        shutil.rmtree(dropped)

    def close(self) -> None:
        """Write everything to disk, and let another process open the folder."""
        self._lite.close()

    def abandon(self) -> None:
        """Release the folder without writing to it, because after a failed write the rows in memory may be wrong."""
        for collection in self._lite._collections.values():
            collection._bg_closed = True
            collection._bg_executor.shutdown(wait=True, cancel_futures=True)
            for sink in (collection._wal._data_sink, collection._wal._delta_sink):
                with suppress(OSError):
                    if sink is not None:
                        sink.close()
        self._lite._release_lock()

    def close_lock(self) -> None:
        """Close a forked child's descriptor of the lock; the parent keeps the lock."""
        os.close(self._lite._lock_fd)

    def _collection(self, name: str) -> Collection:
        collection = self._lite.get_collection(name)
        self._have_indexes(collection)
        return collection

    def _have_indexes(self, collection: Collection) -> None:
        there = {field.name for field in collection.schema.fields}
        for name, params in INDEXES.items():
            if name in there and not collection.has_index(name):
                collection.create_index(name, params)

    def _folders(self) -> list[Path]:
        return [folder for folder in Path(self._lite._collections_root()).iterdir() if folder.is_dir()]


def row_sum(values: Sequence[Any], vector: np.ndarray) -> int:
    """Return the CRC-32 of a row's values and its vector ``[D]``."""
    return zlib.crc32(vector.tobytes(), zlib.crc32(repr(tuple(values)).encode()))


def _mend(folder: Path) -> None:
    """Delete what a kill left behind in a collection's folder: half a collection, or logs whose rows are in files."""
    if {file.name for file in folder.iterdir()} <= {"schema.json.tmp"}:
        shutil.rmtree(folder)
        return
    try:
        active = Manifest.load(str(folder)).active_wal_number or 0
    except ManifestCorruptedError:  # reported when this collection is read; the others can be read
        return
    for number in WAL.find_wal_files(str(folder / "wal")):
        if number < active:
            for file in (folder / "wal").glob(f"wal_*_{number:06d}.arrow"):
                file.unlink()


def _latest(collection: Collection, key: str) -> Iterator[pa.Table]:
    """Yield the rows of files and log as tables: the latest row of each key, and no deleted rows."""
    segments, deleted = collection._read_snapshot()
    memory = collection._memtable
    tables = [segment.table for segment in segments] + [memory.to_arrow_table()]
    latest: dict[str, tuple[int, int, int]] = {}
    for place, table in enumerate(tables):
        rows = zip(table.column(key).to_pylist(), table.column("_seq").to_pylist(), strict=True)
        for number, (one, written) in enumerate(rows):
            known = latest.get(one)
            if known is None or written > known[0]:
                latest[one] = written, place, number
    chosen: list[list[int]] = [[] for _ in tables]
    for one, (written, place, number) in latest.items():
        if not deleted.is_deleted(one, written) and not (place < len(segments) and memory.is_locally_deleted(one)):
            chosen[place].append(number)
    for table, numbers in zip(tables, chosen, strict=True):
        if numbers:
            yield table.take(pa.array(numbers, type=pa.int64()))
