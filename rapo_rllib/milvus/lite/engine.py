"""Milvus Lite's engine with what it lacks to keep every acknowledged row. Flow: ``server.py`` opens and serves it.

milvus-lite 3.2 has no locks above its tables in memory, and a kill meets it in the middle. Left alone,

    two first requests open a collection twice, and both write to one log file      -> SafeDatabase.get_collection
    two writers share a log, numbers of rows, and the end of a table in memory      -> SafeCollection: one at a time
    rows that go to files are nowhere for a moment; for good, if the disk is full   -> SafeCollection._trigger_flush
    a torn record in the log hides all that comes after it                          -> SafeCollection._apply
    a log that was written to files is read again: rows are there twice             -> _delete_old_logs
    half a file of an index keeps its collection from being loaded                  -> _build_or_load_segment_index
    a collection that was half made, or half dropped, cannot be made                -> SafeDatabase
    a repeated call fails because the killed server had carried it out              -> create_index, drop_index
    a call that was given up waits, and is carried out after what came later        -> request.is_wanted
    a byte that is not what was written is read as a row or a neighbour             -> sums.py
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from milvus_lite import db as milvus_lite_db
from milvus_lite.db import DEFAULT_DATABASE_NAME, SCHEMA_FILENAME, MilvusLite
from milvus_lite.engine.collection import Collection
from milvus_lite.engine.flush import execute_flush
from milvus_lite.exceptions import IndexAlreadyExistsError, IndexNotFoundError
from milvus_lite.storage.manifest import Manifest
from milvus_lite.storage.memtable import MemTable
from milvus_lite.storage.wal import WAL

from rapo_rllib.milvus.lite.sums import compare_with_sums, keep_sum, refuse_other

logger = logging.getLogger(__name__)

WRITES = ("insert", "upsert", "delete", "drop_partition", "alter_properties", "close")
READS = ("search", "query", "get", "_num_entities")
FLUSHED = ("_version", "_partitions", "_current_seq", "_active_wal_number")  # of a manifest, what moving rows to files changes
CHANGES = (
    *("create_database", "drop_database", "alter_database_properties", "alter_collection_properties", "close"),
    *("create_collection", "drop_collection", "rename_collection", "truncate_collection", "restore_snapshot"),
    *("create_alias", "alter_alias", "drop_alias"),
)


request = threading.local()  # of a thread that serves: ``is_wanted()`` tells whether its caller still waits


def open_database(folder: str) -> SafeDatabase:
    """Open ``folder`` and every collection in it: their logs are read before anybody can ask for them.

    One that cannot be opened does not keep the others away: who asks for it is told why.
    """
    milvus_lite_db.Collection = SafeCollection
    compare_with_sums()
    database = SafeDatabase(folder)
    for name in database.list_databases():
        for collection in database.list_collections(name):
            try:
                database.get_collection(collection, name)
            except Exception:
                logger.exception("collection %s cannot be opened", collection)
    return database


def _one_at_a_time(lock: str, names: tuple[str, ...]) -> Callable[[type], type]:
    """Class decorator: calls of the methods ``names`` of one object wait for each other, by its attribute ``lock``."""

    def guarded(method: Callable) -> Callable:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with getattr(self, lock):
                if not getattr(request, "is_wanted", lambda: True)():
                    raise TimeoutError("the caller has given up")  # he may have asked again, and for other things since
                return method(self, *args, **kwargs)

        return call

    return _with(names, guarded)


def _again_if_moved(names: tuple[str, ...]) -> Callable[[type], type]:
    """Class decorator: the reads ``names`` look at files, then at memory; rows that moved meanwhile would be in neither."""

    def guarded(method: Callable) -> Callable:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            while True:
                moves = self._moves
                try:
                    found = method(self, *args, **kwargs)
                except Exception:
                    if self._moves == moves:
                        raise
                else:
                    if self._moves == moves:
                        return found

        return call

    return _with(names, guarded)


def _with(names: tuple[str, ...], guarded: Callable[[Callable], Callable]) -> Callable[[type], type]:
    def decorated(cls: type) -> type:
        for name in names:
            setattr(cls, name, guarded(getattr(cls, name)))
        return cls

    return decorated


@_one_at_a_time("_writing", WRITES)
@_again_if_moved(READS)
class SafeCollection(Collection):  # type: ignore[misc]
    """A collection with one writer at a time, whose rows can be read all the time."""

    _memtable: MemTable
    _wal: WAL
    _recovered_wal_bytes: int

    def __init__(self, name: str, data_dir: str, *args: Any, **kwargs: Any) -> None:
        self._writing, self._moves = threading.RLock(), 0
        _delete_old_logs(data_dir)
        super().__init__(name, data_dir, *args, **kwargs)

    def _apply(self, op: Any) -> None:
        try:
            super()._apply(op)
        except BaseException:  # as where the disk is full. What followed half a record would not be read again
            if not self._wal._closed:
                self._begin_log()
            raise

    def _begin_log(self) -> None:
        """Write to a new log from now on; the old ones are read again after a kill, until their rows are in files."""
        old = self._wal
        self._wal = self._new_log()
        self._recovered_wal_bytes += old.size_bytes
        for sink in (old._data_sink, old._delta_sink):
            with suppress(OSError):
                if sink is not None:
                    sink.close()

    def _new_log(self) -> WAL:
        schemas = {"wal_data_schema": self._wal_data_schema, "wal_delta_schema": self._wal_delta_schema}
        return WAL(wal_dir=os.path.join(self._data_dir, "wal"), wal_number=self._wal.number + 1, **schemas)

    def _trigger_flush(self) -> None:
        """Move all rows in memory to files. They stay in memory until they are there, and if the disk takes no file."""
        with self._writing, self._maintenance_lock:
            manifest = self._manifest
            before = {name: copy.deepcopy(vars(manifest)[name]) for name in FLUSHED}
            try:
                execute_flush(
                    frozen_memtable=self._memtable,
                    frozen_wal=self._wal,
                    data_dir=self._data_dir,
                    schema=self._schema,
                    manifest=manifest,
                    delta_index=self._delta_index,
                    new_wal_number=self._wal.number + 1,
                )
            except Exception:
                if manifest.version == before["_version"]:  # no file counts that was written
                    manifest.__dict__.update(before)
                    raise
                logger.exception("a log of %s could not be deleted", self._name)  # its rows are in files
            self._refresh_segment_cache()
            self._moves += 1  # before the rows leave memory: who reads while they do looks again
            self._memtable, self._wal, self._recovered_wal_bytes = MemTable(self._schema), self._new_log(), 0
        self._schedule_bg_maintenance()

    def create_index(self, field_name: str, index_params: dict) -> None:
        """Have an index of this kind; as on a server, one that is there already will do."""
        try:
            super().create_index(field_name, index_params)
        except IndexAlreadyExistsError:
            there = self._index_specs[field_name]
            kind, params = str(index_params["index_type"]).upper(), dict(index_params.get("params") or {})
            if (there.index_type, there.build_params) != (kind, params):
                raise

    def drop_index(self, field_name: str | None = None) -> None:
        """Have no index; as on a server, none has to be there."""
        with suppress(IndexNotFoundError):
            super().drop_index(field_name)

    def _build_or_load_segment_index(self, seg: Any, spec: Any) -> None:
        file = Path(seg.index_file_path(self._index_dir(seg.partition), spec.index_type, spec.field_name))
        try:
            refuse_other(file)
            super()._build_or_load_segment_index(seg, spec)
        except Exception:
            if not file.exists():
                raise
            logger.warning("%s cannot be read, as after a kill; the index is built again", file, exc_info=True)
            file.unlink()
            super()._build_or_load_segment_index(seg, spec)
        if file.exists():
            keep_sum(file)


def _delete_old_logs(data_dir: str) -> None:
    """Delete logs whose rows are in files. A kill can come before the engine has done it, or halfway."""
    manifest = Manifest.load(data_dir)
    for number in WAL.find_wal_files(os.path.join(data_dir, "wal")):
        if number < (manifest.active_wal_number or 0):
            for file in Path(data_dir, "wal").glob(f"wal_*_{number:06d}.arrow"):
                file.unlink()


@_one_at_a_time("_opening", CHANGES)
class SafeDatabase(MilvusLite):  # type: ignore[misc]
    """A database that opens, makes, renames and drops one collection at a time."""

    def __init__(self, data_dir: str) -> None:
        self._opening = threading.RLock()
        super().__init__(data_dir)

    def get_collection(self, name: str, database_name: str = DEFAULT_DATABASE_NAME) -> Collection:
        """The collection, opened once."""
        self._check_open()
        opened = self._collections.get((database_name, self.resolve_collection_name(name, database_name)))
        if opened is not None:
            return opened
        with self._opening:
            return super().get_collection(name, database_name)

    def create_collection(
        self,
        name: str,
        schema: Any,
        properties: dict | None = None,
        database_name: str = DEFAULT_DATABASE_NAME,
    ) -> Collection:
        """Make a collection, also where a kill came between its folder and its schema."""
        self._validate_name(name)
        folder = Path(self._collection_dir(name, database_name))
        if folder.is_dir() and {file.name for file in folder.iterdir()} <= {f"{SCHEMA_FILENAME}.tmp"}:
            shutil.rmtree(folder)
        return super().create_collection(name, schema, properties, database_name)

    def drop_collection(self, name: str, database_name: str = DEFAULT_DATABASE_NAME) -> None:
        """Delete a collection. A kill leaves it whole or not at all."""
        self._check_open()
        name = self.resolve_collection_name(name, self._require_database(database_name))
        if not self.has_collection(name, database_name):
            return
        opened = self._collections.pop((database_name, name), None)
        if opened is not None:
            opened.close()
        dropped = tempfile.mkdtemp(prefix="dropped-", dir=self._database_staging_root())  # emptied when a server starts
        os.rename(self._collection_dir(name, database_name), dropped)
        for alias in self.list_aliases(name, database_name):
            self.drop_alias(alias, database_name)
        shutil.rmtree(dropped)
