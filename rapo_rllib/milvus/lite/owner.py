"""The one owner of a Milvus Lite path: it alone has the folder open, and answers from memory.

    write -> Database (on disk), then Table (in memory)
    read  -> Table; a search by words -> Database, then Table

Lives in a Ray actor, or in a process without Ray; ``handle.py`` finds it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.errors import RetrievalError, shortage
from rapo_rllib.milvus.address import check_lite_path
from rapo_rllib.milvus.lite.table import Table
from rapo_rllib.milvus.schema import Condition, Field, Shape, check_rows, pymilvus_module

if TYPE_CHECKING:
    import numpy as np

    from rapo_rllib.milvus.lite.database import Database

logger = logging.getLogger(__name__)

RAY = "Ray, job "  # prefix of the command of an owner in Ray
LEAVING_S = 5.0  # limit of the wait for the folder: an ending owner still writes its log to files
NEXT_S = 60.0  # the same limit if the last owner was of the same Ray job: a busy machine takes long to end a process


class OwnerEndedError(ConnectionError):
    """Error of a call to an owner that has released the path for good; another owner may have the path."""


class Owner:
    """Owner of a Lite path, which it opens on first use. Thread-safe; one call at a time.

    Every method raises ``RetrievalError`` when the folder cannot be read or written.

    Args:
        path: absolute.
        uri_key: what the user calls it, for messages.
        command: command of this process, for the message to a process that is refused the path.
    """

    def __init__(self, path: str, uri_key: str, command: str = "") -> None:
        self.path, self._uri_key = path, uri_key
        self._command = command or " ".join(sys.argv)[:200]
        self._note = Path(f"{path}.owner")  # names the process that has the folder open
        self.lock = threading.RLock()
        self._database: Database | None = None
        self._tables: dict[str, Table] = {}
        self._ended = False

    def exists(self, collection: str) -> bool:
        """Return whether the collection exists; makes no folder."""
        with self.lock:
            return (self._ended or Path(self.path).exists()) and self._open("exists", collection).has(collection)

    def create(self, collection: str, fields: Sequence[Field], dim: int, words_of: str | None = None) -> None:
        """See ``MilvusHandle.create``."""
        with self._writing("create", collection) as database:
            if not database.has(collection):
                database.make(collection, fields, dim, words_of)

    def upsert(self, collection: str, rows: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        """See ``MilvusHandle.upsert``."""
        if not rows:
            return
        with self.lock:
            table = self._table(collection)
            check_rows(rows, vectors, self.shape(collection))
            with self._writing("upsert", collection) as database:
                table.put(database.write(collection, rows, vectors), vectors)
                self._tables[collection] = table.compacted()

    def delete(self, collection: str, ids: Sequence[str]) -> None:
        """See ``MilvusHandle.delete``."""
        if not ids:
            return
        with self.lock:
            table = self._table(collection)
            with self._writing("delete", collection) as database:
                database.delete(collection, ids)
                table.delete(ids)
                self._tables[collection] = table.compacted()

    def flush(self, collection: str) -> None:
        """See ``MilvusHandle.flush``."""
        with self._writing("flush", collection) as database:
            database.flush(collection)

    def drop(self, collection: str) -> None:
        """See ``MilvusHandle.drop``."""
        if self.exists(collection):
            with self._writing("drop", collection) as database:
                self._tables.pop(collection, None)
                database.drop(collection)

    def shape(self, collection: str) -> Shape:
        """See ``MilvusHandle.shape``."""
        with self.lock:
            table = self._table(collection)
            sizes = {field.name: field.max_bytes if field.kind == "VARCHAR" else None for field in table.fields}
            return Shape(sizes, table.dim, table.fields[0].name)

    def search(
        self,
        collection: str,
        vectors: np.ndarray,
        top_k: int,
        fields: Sequence[str],
        index: str = "auto",
        only: Sequence[Condition | None] | None = None,
    ) -> list[list[dict[str, Any]]]:
        """See ``MilvusHandle.search``."""
        with self.lock:
            table = self._table(collection)
            found = table.nearest(vectors, top_k, only, index == "exact")
            rows = [table.rows([number for number, _ in hits], fields) for hits in found]
        return [
            [{**row, "similarity": similarity} for row, (_, similarity) in zip(some, hits, strict=True)]
            for some, hits in zip(rows, found, strict=True)
        ]

    def search_words(
        self, collection: str, texts: Sequence[str], top_k: int, fields: Sequence[str]
    ) -> list[list[dict[str, Any]]]:
        """See ``MilvusHandle.search_words``."""
        with self.lock:
            table = self._table(collection)
            with self._told("search", collection):
                found = self._open("search", collection).search_words(collection, texts, top_k)
            return [
                [{**table.rows(table.find([one]), fields)[0], "similarity": score} for one, score in hits] for hits in found
            ]

    def get(self, collection: str, ids: Sequence[str], fields: Sequence[str], latest: bool = True) -> list[dict[str, Any]]:
        """See ``MilvusHandle.get``; every answer is of the latest write."""
        with self.lock:
            table = self._table(collection)
            return table.rows(table.find(ids), fields)

    def page(
        self, collection: str, fields: Sequence[str], after: str | None, size: int
    ) -> tuple[list[dict[str, Any]], str | None]:
        """See ``Table.page``."""
        with self.lock:
            table = self._table(collection)
            numbers, following = table.page(after, size)
            return table.rows(numbers, fields), following

    def count(self, collection: str) -> int:
        """See ``MilvusHandle.count``."""
        with self.lock:
            return len(self._table(collection))

    def close(self) -> None:
        """Write everything to files, and let another process open the folder. The next call opens it again."""
        with self.lock:
            database, self._database = self._database, None
            self._tables.clear()
            if database is None:
                return
            if database.is_elsewhere():
                database.abandon()
            else:
                database.close()
                if (holder := self._holder()) and holder[:2] == (os.getpid(), socket.gethostname()):
                    self._note.unlink(missing_ok=True)

    def end(self) -> None:
        """Close for good. Every call then raises ``OwnerEndedError``."""
        with self.lock:
            self._ended = True
            self.close()

    def forget_in_child(self) -> None:
        """Leave the folder to the parent after a fork, so that the child does not keep it locked when the parent ends."""
        if self._database is not None:
            self._database.close_lock()

    def _table(self, collection: str) -> Table:
        database = self._open("open", collection)
        if collection not in self._tables:
            with self._told("open", collection):
                table = Table(*database.fields(collection))
                for rows, vectors in database.content(collection):
                    table.put(rows, vectors)
                table.prepare()
            self._tables[collection] = table
        return self._tables[collection]

    def _open(self, method: str, collection: str) -> Database:
        if self._ended:
            raise OwnerEndedError
        if self._database is not None and self._database.is_elsewhere():
            self._abandon()
        if self._database is None:
            check_lite_path(self.path, self._uri_key)
            with self._told(method, collection):
                self._database = self._opened()
        return self._database

    def _opened(self) -> Database:
        pymilvus_module()  # before milvus_lite's own import of it, which would read a .env file
        from milvus_lite.exceptions import DataDirLockedError

        from rapo_rllib.milvus.lite.database import Database

        start = time.monotonic()
        while True:
            try:
                database = Database(self.path)
            except DataDirLockedError as error:
                holder = self._holder()
                ends = holder is not None and holder[2] == self._command and self._command.startswith(RAY)
                if time.monotonic() > start + (NEXT_S if ends else LEAVING_S):
                    raise RetrievalError(self._refusal(holder)) from error
                time.sleep(0.1)
            else:
                with suppress(OSError):  # a full disk can still be read, and the note only serves a message
                    self._note.write_text(json.dumps([os.getpid(), socket.gethostname(), self._command]))
                return database

    def _holder(self) -> tuple[int, str, str] | None:
        """Return process, machine and command of the holder of the folder; None if no live process holds it."""
        try:
            pid, machine, command = json.loads(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError):
            return None
        is_alive = machine != socket.gethostname() or Path(f"/proc/{pid}").exists()
        return (pid, machine, command) if is_alive else None

    def _refusal(self, holder: tuple[int, str, str] | None) -> str:
        by = f"process {holder[0]} on {holder[1]} ({holder[2]})" if holder else "another process"
        return (
            f"{self._uri_key}: {self.path} is open in {by}. A Milvus Lite path is open in one process at a time; all of one "
            "Ray cluster share it. Wait for that process or end it, use a copy of the folder, or name a Milvus server."
        )

    @contextmanager
    def _writing(self, method: str, collection: str) -> Iterator[Database]:
        """Yield the open folder for a write; after a failed write, forget the tables in memory, so that they are read anew."""
        with self.lock:
            database = self._open(method, collection)
            try:
                with self._told(method, collection):
                    yield database
            except BaseException:
                self._abandon()
                raise

    def _abandon(self) -> None:
        """Forget what is in memory; the next call reads what is on disk."""
        database, self._database = self._database, None
        self._tables.clear()
        if database is not None:
            database.abandon()

    @contextmanager
    def _told(self, method: str, collection: str) -> Iterator[None]:
        """Turn errors of Lite or the disk into ``RetrievalError`` with a remedy."""
        try:
            yield
        except OwnerEndedError:
            raise
        except RetrievalError as error:
            if str(error).startswith((self._uri_key, "Milvus at")):
                raise
            raise RetrievalError(self._message(method, collection, error)) from error
        except Exception as error:
            logger.debug("%s on %s", method, collection, exc_info=True)
            raise RetrievalError(self._message(method, collection, error)) from error

    def _message(self, method: str, collection: str, error: Exception) -> str:
        reason = " ".join(f"{error}".split())[:400] or type(error).__name__
        if remedy := shortage(error):
            advice = f"What was stored before is still there: {remedy}, then do the same again."
        else:
            advice = "If files in its folder are damaged: restore a copy of the folder, or delete it and fill it anew."
        return f"Milvus at {self.path} refused {method} on collection {collection!r}: {reason}. {advice}"
