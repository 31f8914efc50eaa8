"""The files of a snapshot, in one folder per version: written whole or not at all, mapped by every process of the machine.

    keys.faiss   the keys, a flat faiss index      facts.json    sizes and sums of the files and what they are of
    rows.arrow   the stored columns                graph.faiss   added later, if the collection is large (``graph.py``)

Flow: ``cache.py`` opens a version, and writes it if nobody has. A file is compared with its sum when it is mapped, and again
when the kernel says that somebody wrote to it; a version that is damaged is made again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.ipc

from rapo_rllib.checkpoints.folder import sums
from rapo_rllib.milvus.schema import VECTOR, Field
from rapo_rllib.milvus.snapshot.graph import KEYS_FILE, add_graph
from rapo_rllib.milvus.snapshot.snapshot import Snapshot, stamps_of
from rapo_rllib.services.json_files import read_json

logger = logging.getLogger(__name__)

FORMAT = 2  # of the files; others are written anew
ROWS_FILE, FACTS_FILE = "rows.arrow", "facts.json"
FACTS = {"format": int, "shape": [int], "epoch": str, "files": {str: [int]}}
ONE_BATCH_ROWS = 20_000  # a small snapshot is written in one piece, however many additions it grew by
ARROW_TYPES = {"VARCHAR": pa.string(), "INT64": pa.int64(), "DOUBLE": pa.float64()}


@dataclass(frozen=True)
class Content:
    """The content of a new version: rows of an older snapshot, then rows that are read.

    Attributes:
        fields: the stored columns.
        shape: ``(N, D)``, number and width of all keys.
        pages: rows with the fields and ``vector``.
        older: a snapshot, and the bool mask of its rows that are still there.
        epoch: versions with the same one differ only in rows that were added or deleted.
    """

    fields: Sequence[Field]
    shape: tuple[int, int]
    pages: Iterable[Sequence[dict[str, Any]]]
    older: tuple[Snapshot, np.ndarray] | None = None
    epoch: str = ""


def version_folder(folder: Path, collection: str, version: str) -> Path:
    """The folder of a version."""
    return folder / f"{collection}-{version}"


def read_snapshot(place: Path, version: str) -> Snapshot | None:
    """Map a version; None if it is not there, or its files are not what ``facts.json`` says."""
    stamps = stamps_of(place, (KEYS_FILE, ROWS_FILE))
    facts = _facts(place)
    if facts is None or _is_damaged(place, facts):
        return None
    try:
        keys = faiss.read_index(str(place / KEYS_FILE), faiss.IO_FLAG_MMAP_IFC)
        table = pyarrow.ipc.open_file(pa.memory_map(str(place / ROWS_FILE))).read_all()
    except (OSError, RuntimeError, pa.ArrowInvalid):
        return None
    if [keys.ntotal, keys.d] != facts["shape"] or table.num_rows != keys.ntotal:
        return None
    snapshot = Snapshot(version, table, keys, stamps=stamps)
    add_graph(place, snapshot)
    return snapshot


def write_snapshot(place: Path, content: Content) -> bool:
    """Write a version beside its place; :func:`publish` makes it valid. False if the rows were not ``N``.

    Raises:
        OSError: the disk takes no file.
    """
    partial = partial_folder(place)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    keys = faiss.IndexFlatIP(content.shape[1])
    keys.codes.resize(4 * content.shape[0] * content.shape[1])
    keys.ntotal = content.shape[0]
    count = 0
    schema = pa.schema([(field.name, ARROW_TYPES[field.kind]) for field in content.fields])
    with pa.OSFile(str(partial / ROWS_FILE), "wb") as file, pyarrow.ipc.new_file(file, schema) as writer:
        for batch, vectors in _batches(content, schema):
            if count + len(vectors) > content.shape[0]:
                return False
            keys_view(keys)[count : count + len(vectors)] = vectors
            writer.write(batch)
            count += len(vectors)
    if count != content.shape[0]:
        return False
    try:
        faiss.write_index(keys, str(partial / KEYS_FILE))
    except RuntimeError as error:  # faiss says so when the disk is full
        raise OSError(str(error).splitlines()[0]) from error
    written = sums(partial, [KEYS_FILE, ROWS_FILE])
    facts = {"format": FORMAT, "shape": list(content.shape), "epoch": content.epoch, "files": written}
    (partial / FACTS_FILE).write_text(json.dumps(facts), encoding="utf-8")
    return True


def publish(place: Path) -> None:
    """Make what :func:`write_snapshot` wrote valid, in one rename, and forget the older versions and what killed writers left.

    Nobody else may be writing one meanwhile. Who still maps one keeps it until it lets go.
    """
    damaged = place.with_name(f"{place.name}.damaged.partial")  # or it would have been opened
    shutil.rmtree(damaged, ignore_errors=True)
    with suppress(FileNotFoundError):
        place.rename(damaged)  # first, since a builder of its graph may put files into it while it is deleted
    os.rename(partial_folder(place), place)
    for other in (*_versions(place), *_partial_folders(place.parent, _collection_of(place))):
        if other != place:
            shutil.rmtree(other, ignore_errors=True)


def delete_versions(folder: Path, collection: str) -> None:
    """Delete every version of a collection, and what killed writers left. Nobody may be writing one meanwhile.

    Raises:
        OSError: the disk does not let them go.
    """
    for path in _partial_folders(folder, collection):
        shutil.rmtree(path)
    for place in list(folder.glob(f"{collection}-*")):
        shutil.rmtree(place.rename(partial_folder(place)))  # else a builder of its graph might put a file into it meanwhile


def partial_folder(place: Path) -> Path:
    """The folder that a version is written into."""
    return place.with_name(f"{place.name}.partial")


def older_snapshot(place: Path, epoch: str) -> Snapshot | None:
    """A snapshot of another version of the same collection, whose rows were not changed since."""
    for other in _versions(place):
        if other != place and epoch and (_facts(other) or {}).get("epoch") == epoch:
            return read_snapshot(other, "")
    return None


def keys_view(keys: faiss.IndexFlat) -> np.ndarray:
    """The keys ``[N, D]`` where they lie."""
    view: np.ndarray = faiss.rev_swig_ptr(keys.get_xb(), keys.ntotal * keys.d)
    return view.reshape(keys.ntotal, keys.d)


def _versions(place: Path) -> list[Path]:
    found = place.parent.glob(f"{_collection_of(place)}-*")
    return [path for path in found if path.is_dir() and path.suffix != ".partial"]


def _partial_folders(folder: Path, collection: str) -> list[Path]:
    return list(folder.glob(f"{collection}-*.partial"))


def _collection_of(place: Path) -> str:
    return place.name.rsplit("-", 1)[0]


def _facts(place: Path) -> dict[str, Any] | None:
    """Read ``facts.json``."""
    try:
        facts: dict[str, Any] = read_json(place / FACTS_FILE, FACTS)
        return facts if facts["format"] == FORMAT else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        logger.warning("the snapshot in %s is damaged (%s): it is made again", place, error)
        return None


def _is_damaged(place: Path, facts: dict[str, Any]) -> bool:
    """Whether the files are not what ``facts.json`` says."""
    try:
        found = sums(place, [KEYS_FILE, ROWS_FILE])
    except (FileNotFoundError, NotADirectoryError):
        return True
    wrong = [name for name in found if found[name] != facts["files"].get(name)]
    if wrong:
        logger.warning("%s is not what was written: the snapshot is made again", place / wrong[0])
    return bool(wrong)


def _batches(content: Content, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    if content.older is not None:
        snapshot, mask = content.older
        table = snapshot.table.filter(pa.array(mask))
        if len(table) <= ONE_BATCH_ROWS:
            table = table.combine_chunks()
        vectors, start = keys_view(snapshot.keys)[mask], 0
        for batch in table.to_batches():
            yield batch, vectors[start : start + len(batch)]
            start += len(batch)
    for page in content.pages:
        batch = pa.RecordBatch.from_pylist(list(page), schema=schema)
        yield batch, np.array([row[VECTOR] for row in page], dtype=np.float32)
