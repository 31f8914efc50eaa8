"""The HNSW graph of a large snapshot: ``python -m rapo_rllib.milvus.snapshot.graph FOLDER``.

Building takes minutes for 170,000 keys, so a child process of low priority does it, while everybody searches exactly. The file
holds the graph alone (140 bytes a key); its vectors are the mapped keys, so that processes share both.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import faiss

from rapo_rllib.checkpoints.folder import sums
from rapo_rllib.milvus.lite.server import try_lock
from rapo_rllib.milvus.snapshot.snapshot import Snapshot, stamps_of
from rapo_rllib.services.json_files import read_json

logger = logging.getLogger(__name__)

GRAPH_FILE, KEYS_FILE, LOCK_FILE, LOG_FILE = "graph.faiss", "keys.faiss", "graph.lock", "graph.log"
SUM_FILE = "graph.json"  # size and sum of the graph
# Of 40,000 real and mixed keys the nearest was found, by 512 nodes in sight, in 91 of 100 cases with (16, 80), in 93 with
# (32, 80), 96 with (24, 120), 98 with (16, 200) or (32, 200). Building took 7, 7, 10, 19 and 20 s of a core.
NEIGHBOURS, EF_CONSTRUCTION = 16, 200
PACKAGE_ROOT = Path(__file__).resolve().parents[3]


def add_graph(folder: Path, snapshot: Snapshot) -> None:
    """Map the graph of a snapshot, if it is there. One that is not what was written is deleted."""
    file, keys = folder / GRAPH_FILE, snapshot.keys
    if not file.exists():
        return
    stamps = stamps_of(folder, (GRAPH_FILE,))
    try:
        if read_json(folder / SUM_FILE, [int]) != sums(folder, [GRAPH_FILE])[GRAPH_FILE]:
            raise RuntimeError("it is not what was written")
        graph = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        if graph.ntotal != keys.ntotal or graph.d != keys.d:
            raise RuntimeError(f"it is of {graph.ntotal} keys of width {graph.d}, not {keys.ntotal} of {keys.d}")
    except (FileNotFoundError, ValueError, RuntimeError) as error:
        logger.warning("the index %s is damaged (%s): it is made again", file, str(error).splitlines()[0])
        file.unlink(missing_ok=True)
        return
    graph.storage, graph.own_fields = keys, False
    graph.referenced_objects = [keys]  # faiss' own way to say that these must live as long
    snapshot.graph, snapshot.stamps = graph, snapshot.stamps | stamps


def is_being_built(folder: Path) -> bool:
    """Whether a process is building the graph of this snapshot."""
    with (folder / LOCK_FILE).open("a") as lock:
        return not try_lock(lock, fcntl.LOCK_EX)


def start_build(folder: Path) -> subprocess.Popen:
    """Build the graph of a snapshot in a process of its own; one that finds another at work ends at once."""
    path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    with (folder / LOG_FILE).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "rapo_rllib.milvus.snapshot.graph", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "passive"},  # waiting threads would spin
        )


def build_graph(folder: Path) -> None:
    """Build and write the graph of a snapshot, unless another process is doing it."""
    with (folder / LOCK_FILE).open("a") as lock:
        if not try_lock(lock, fcntl.LOCK_EX) or (folder / GRAPH_FILE).exists():
            return
        keys = faiss.read_index(str(folder / KEYS_FILE), faiss.IO_FLAG_MMAP_IFC)
        graph = faiss.IndexHNSWFlat(keys.d, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = EF_CONSTRUCTION
        graph.add_c(keys.ntotal, keys.get_xb())
        partial = folder / f"{GRAPH_FILE}.partial"
        faiss.write_index(graph, str(partial), faiss.IO_FLAG_SKIP_STORAGE)
        (folder / SUM_FILE).write_text(json.dumps(sums(folder, [partial.name])[partial.name]))
        partial.rename(folder / GRAPH_FILE)


def main() -> None:
    """Build the graph of the snapshot named on the command line; of one that is replaced, in the folder that it had."""
    os.nice(10)
    folder = Path(sys.argv[1])
    try:
        os.chdir(folder)
        build_graph(Path())
    except (OSError, RuntimeError):
        if folder.exists() and folder.samefile("."):
            raise


if __name__ == "__main__":
    main()
