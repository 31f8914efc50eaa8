"""The snapshot of a Lite collection, kept up to date. Flow: buffer and corpus ask for ``current()`` before a search."""

from __future__ import annotations

import logging
import math
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.handle import MilvusHandle
from rapo_rllib.milvus.index import EXACT_LIMIT
from rapo_rllib.milvus.lite.lease import exclusive_lock
from rapo_rllib.milvus.lite.server import beside
from rapo_rllib.milvus.notes import Notes
from rapo_rllib.milvus.schema import VECTOR

if TYPE_CHECKING:
    from rapo_rllib.milvus.snapshot.files import Content
    from rapo_rllib.milvus.snapshot.snapshot import Snapshot

logger = logging.getLogger(__name__)

VERSION_NOTE = "version"  # changes whenever rows are added
VERSION = {"version": str, "epoch": str}  # its shape
CHECK_S = 5.0  # how old a snapshot's version may be
PATIENCE = 10  # after an attempt that gave no snapshot, wait so many times as long as it took
WRITE_TIMEOUT_S = 3600.0  # how long to wait for the process that writes the files
PAGE = 10_000  # rows with vectors in one answer: Lite scans all rows for every page
GET_PAGE = 1000  # rows by id in one answer


class SnapshotCache:
    """Keys and rows of one collection in memory, as they were at most ``CHECK_S`` seconds ago. Picklable; safe in threads.

    Args:
        milvus: where the collection is.
        collection: its name.
        exact_limit: rows up to which every query is compared with every key; above, an index is built meanwhile.
    """

    def __init__(self, milvus: MilvusHandle, collection: str, exact_limit: int = EXACT_LIMIT) -> None:
        self._milvus, self._collection, self._exact_limit = milvus, collection, exact_limit
        self._notes = Notes(milvus, collection)
        self._folder = beside(milvus.uri, "keys")
        self._start()

    def __getstate__(self) -> dict:
        return {name: getattr(self, name) for name in ("_milvus", "_collection", "_exact_limit", "_notes", "_folder")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._start()

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._builder: subprocess.Popen | None = None
        self._building = ""  # the version that it builds for
        self.forget()

    def forget(self) -> None:
        """Let go of the snapshot."""
        with self._lock:
            self._snapshot: Snapshot | None = None
            self.refresh()

    def delete_files(self) -> None:
        """Let go of the snapshot, and delete the files of every version. Who else has one mapped keeps it until it lets go.

        Raises:
            RetrievalError: the disk does not let them go, or another process writes them for an hour.
        """
        self.forget()
        if not self._milvus.is_lite or not self._folder.is_dir():
            return
        from rapo_rllib.milvus.snapshot import files

        try:
            with exclusive_lock(self._folder / "lock", WRITE_TIMEOUT_S):
                files.delete_versions(self._folder, self._collection)
        except OSError as error:
            raise RetrievalError(f"step traces are left in {self._folder}, which cannot be deleted: {error}") from error

    def refresh(self) -> None:
        """Have the next :meth:`current` see every change that was marked, and not only after ``CHECK_S`` seconds."""
        self._next_check = -math.inf

    def mark_changed(self, rewritten: bool = False) -> None:
        """Tell all users that rows were added or deleted: who keeps a snapshot makes a new one, by reading what is new.

        Args:
            rewritten: rows were given other values under the same key; everything is read again.
        """
        epoch = (self._notes.get(VERSION_NOTE, VERSION) or {}).get("epoch")
        fresh = uuid.uuid4().hex
        self._notes.set(VERSION_NOTE, {"version": fresh, "epoch": fresh if rewritten or epoch is None else epoch})
        self.refresh()

    def current(self, dim: int) -> Snapshot | None:
        """The snapshot of a Lite path's keys of width ``dim``; None where Milvus itself is to search.

        The first process that asks for a version writes it, the others wait for it. Above ``exact_limit`` rows an index is then
        built in the background; until it is there, every search is exact.

        Raises:
            RetrievalError: Milvus does not answer.
        """
        if not self._milvus.is_lite:
            return None
        with self._lock:
            if self._snapshot is not None and self._snapshot.is_touched():
                self.forget()
            if time.monotonic() >= self._next_check:
                started = time.monotonic()
                note = self._notes.get(VERSION_NOTE, VERSION)
                if note is None:  # nobody says when its rows change
                    self._snapshot = None
                elif self._snapshot is None or self._snapshot.version != note["version"]:
                    self._snapshot, self._building = self._opened(note, dim), ""  # what was made again may have an index
                taken = time.monotonic() - started
                self._next_check = started + taken + (PATIENCE * taken if self._snapshot is None else 0.0) + CHECK_S
                if self._snapshot is not None:
                    self._look_for_graph(self._snapshot)
            return self._snapshot

    def _opened(self, note: dict, dim: int) -> Snapshot | None:
        """Map the snapshot of a version; the first to ask writes it. None, with a warning, if that cannot be."""
        from rapo_rllib.milvus.snapshot import files

        place = files.version_folder(self._folder, self._collection, note["version"])
        try:
            found = files.read_snapshot(place, note["version"])
            if found is not None:
                return found
            self._folder.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self._folder / "lock", WRITE_TIMEOUT_S):
                found = files.read_snapshot(place, note["version"])
                if found is None and self._written(place, note, dim):
                    found = files.read_snapshot(place, note["version"])
            return found
        except OSError as error:
            logger.warning("no snapshot in %s (%s): searching Milvus Lite itself, which is slower", self._folder, error)
            return None

    def _written(self, place: Path, note: dict, dim: int) -> bool:
        from rapo_rllib.milvus.snapshot import files

        try:
            if files.write_snapshot(place, self._content(place, note, dim)) and self._notes.get(VERSION_NOTE, VERSION) == note:
                files.publish(place)
                return True
        finally:
            shutil.rmtree(files.partial_folder(place), ignore_errors=True)
        logger.warning("%s changed while it was read; searching Milvus Lite itself meanwhile", self._collection)
        return False

    def _content(self, place: Path, note: dict, dim: int) -> Content:
        """Return what the version holds. Of an older snapshot's rows only the ids are read."""
        import numpy as np

        from rapo_rllib.milvus.snapshot import files

        fields = self._milvus.fields(self._collection)
        names, epoch = [field.name for field in fields], note["epoch"]
        older = files.older_snapshot(place, epoch)
        if older is not None and older.table.column_names == names:
            key = names[0]
            ids = {row[key] for page in self._milvus.pages(self._collection, [key]) for row in page}
            known = older.table.column(key).to_pylist()
            fresh = sorted(ids.difference(known))
            if len(fresh) <= len(ids) // 2:
                mask = np.array([one in ids for one in known], dtype=bool)
                return files.Content(fields, (len(ids), dim), self._by_id(fresh, names), (older, mask), epoch)
        pages = self._milvus.pages(self._collection, [*names, VECTOR], PAGE)
        return files.Content(fields, (self._milvus.count(self._collection), dim), pages, epoch=epoch)

    def _by_id(self, ids: Sequence[str], names: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        for start in range(0, len(ids), GET_PAGE):
            yield self._milvus.get(self._collection, ids[start : start + GET_PAGE], [*names, VECTOR])

    def _look_for_graph(self, snapshot: Snapshot) -> None:
        """Use the index of a large snapshot as soon as it is there; have it built if nobody does."""
        if snapshot.graph is not None or len(snapshot) <= self._exact_limit:
            return
        from rapo_rllib.milvus.snapshot import files
        from rapo_rllib.milvus.snapshot.graph import LOG_FILE, add_graph, is_being_built, start_build

        place = files.version_folder(self._folder, self._collection, snapshot.version)
        ended = None if self._builder is None else self._builder.poll()
        try:
            add_graph(place, snapshot)
            if snapshot.graph is None and place.exists() and not is_being_built(place):
                if ended and self._building == snapshot.version:
                    logger.warning("no index of %s could be built (see %s); every search is exact", place, place / LOG_FILE)
                elif self._builder is None or ended is not None:
                    self._builder, self._building = start_build(place), snapshot.version
        except OSError as error:  # as where another process has put a newer version in its place
            logger.warning("no index of %s (%s); every search is exact", place, error)
