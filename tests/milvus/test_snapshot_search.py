"""Snapshots on their own: exactness, masks, the index, columns, and files that several processes share or are killed over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from places import SUPPORT

from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.milvus.schema import Field
from rapo_rllib.milvus.snapshot import graph as snapshot_graph
from rapo_rllib.milvus.snapshot import snapshot
from rapo_rllib.milvus.snapshot.files import Content, keys_view, publish, read_snapshot, version_folder, write_snapshot
from rapo_rllib.milvus.snapshot.snapshot import Snapshot

FIELDS = (Field("id"), Field("text"), Field("reward", "DOUBLE"), Field("step_index", "INT64"))
PAGE = 300


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def random_keys(count: int, dim: int = 32, seed: int = 0) -> np.ndarray:
    """Clustered, as keys of one question are."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((count // 20 + 1, dim))
    return unit(centres[rng.integers(0, len(centres), count)] + 0.3 * rng.standard_normal((count, dim)))


def row(number: int) -> dict:
    return {"id": f"t{number}", "text": f"ä {number % 7}" * 3, "reward": number / 2, "step_index": number % 3}


def pages(keys: np.ndarray) -> Iterator[list[dict]]:
    for start in range(0, len(keys), PAGE):
        yield [row(start + i) | {"vector": key.tolist()} for i, key in enumerate(keys[start : start + PAGE])]


def made(folder: Path, keys: np.ndarray, graph: bool = False) -> Snapshot:
    place = version_folder(folder, "c", "1")
    assert write_snapshot(place, Content(FIELDS, keys.shape, pages(keys)))
    publish(place)
    if graph:
        snapshot_graph.build_graph(place)
    found = read_snapshot(place, "1")
    assert found is not None and (found.graph is not None) == graph
    return found


def expected(keys: np.ndarray, query: np.ndarray, top_k: int, mask: np.ndarray | None = None) -> list[float]:
    scores = keys @ query
    return sorted((scores if mask is None else scores[mask]).tolist(), reverse=True)[:top_k]


def similarities(hits: Sequence[tuple[int, float]]) -> list[float]:
    return [value for _, value in hits]


def test_hand_worked_neighbours(tmp_path: Path) -> None:
    found = made(tmp_path, np.array([[1, 0], [0, 1], [0.6, 0.8]], dtype=np.float32))
    assert found.search(np.array([[0, 1], [1, 0]], dtype=np.float32), 2) == [
        [(1, 1.0), (2, pytest.approx(0.8))],
        [(0, 1.0), (2, pytest.approx(0.6))],
    ]
    assert [number for number, _ in found.search(np.array([[0.6, 0.8]]), 9)[0]] == [2, 1, 0]
    only = [np.array([True, False, False]), None]
    assert found.search(np.array([[0, 1], [0, 1]]), 2, only) == [[(0, 0.0)], [(1, 1.0), (2, pytest.approx(0.8))]]
    assert found.search(np.array([[0, 1]]), 2, [np.zeros(3, dtype=bool)]) == [[]]
    with pytest.raises(ValueError, match="got 1 queries and 2 masks"):
        found.search(np.array([[0, 1]]), 2, only)


def test_no_rows(tmp_path: Path) -> None:
    found = made(tmp_path, np.zeros((0, 8), dtype=np.float32))
    assert len(found) == 0 and found.search(np.ones((2, 8)), 3) == [[], []] and found.rows([]) == []
    assert found.numbers("reward").tolist() == [] and found.codes("text")[1] == {}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("top_k", [1, 7])
@pytest.mark.parametrize("batch", [1, 40])
def test_every_row_is_compared_with_numpy(tmp_path: Path, graph: bool, top_k: int, batch: int) -> None:
    keys = random_keys(1500)
    found = made(tmp_path, keys, graph)
    asked = random_keys(batch, seed=1)
    hits = found.search(asked, top_k)
    for query, one in zip(asked, hits, strict=True):
        assert similarities(one) == pytest.approx([float(keys[number] @ query) for number, _ in one], abs=1e-5)
        if not graph:
            assert similarities(one) == pytest.approx(expected(keys, query, top_k), abs=1e-5)
    if graph:
        right = sum(one[0][1] > expected(keys, query, 1)[0] - 1e-5 for query, one in zip(asked, hits, strict=True))
        assert right >= 0.95 * batch


@pytest.mark.parametrize("graph", [False, True])
def test_masks(tmp_path: Path, graph: bool) -> None:
    keys = random_keys(1500)
    found, asked, rng = made(tmp_path, keys, graph), random_keys(30, seed=2), np.random.default_rng(0)
    shared = rng.random(1500) < 0.5
    masks: list[np.ndarray | None] = [None, shared, shared, np.arange(1500) == 7, np.arange(1500) < 3]
    masks += [rng.random(1500) < share for share in np.linspace(0.01, 1, 25)]
    right = 0
    for query, mask, hits in zip(asked, masks, found.search(asked, 5, masks), strict=True):
        allowed = np.ones(1500, dtype=bool) if mask is None else mask
        assert all(allowed[number] for number, _ in hits) and len(hits) == min(5, allowed.sum())
        best = expected(keys, query, 5, allowed)
        exact = not graph or allowed.mean() < snapshot.MIN_ALLOWED
        assert not exact or similarities(hits) == pytest.approx(best, abs=1e-5)
        right += hits[0][1] > best[0] - 1e-5
    assert right >= 28


def test_recall_on_real_keys(tmp_path: Path) -> None:
    topics = ("apples", "trains", "the moon", "Paris", "an exam", "bread", "a river", "rent")
    pairs = [(f"How many {topic} are there after {i} days?", f"step {i % 5}" * (i % 5)) for i in range(15) for topic in topics]
    keys = Embedder("all-minilm-l6-v2").encode(pairs)
    asked = unit(keys + 0.02 * np.random.default_rng(0).standard_normal(keys.shape))
    exact = [hits[0][1] for hits in made(tmp_path / "exact", keys).search(asked, 1)]
    found = [hits[0][1] for hits in made(tmp_path / "graph", keys, graph=True).search(asked, 1)]
    assert np.mean(np.array(found) > np.array(exact) - 1e-5) >= 0.98


def test_columns(tmp_path: Path) -> None:
    found = made(tmp_path, random_keys(1000))
    assert found.rows([999, 0, 301, 0]) == [row(999), row(0), row(301), row(0)]
    assert found.numbers("reward").tolist() == [i / 2 for i in range(1000)]
    assert found.numbers("step_index") is found.numbers("step_index")
    codes, texts = found.codes("text")
    assert sorted(texts.values()) == list(range(7)) and codes.dtype.kind == "i"
    assert [texts[row(i)["text"]] for i in range(1000)] == codes.tolist()


def test_found_rows_carry_their_similarity(tmp_path: Path) -> None:
    keys = random_keys(50)
    found = made(tmp_path, keys).found(keys[[4, 9]], 1)
    assert found == [[{**row(n), "similarity": pytest.approx(1.0)}] for n in (4, 9)]


@pytest.mark.parametrize(
    "damage", ["keys cut off", "rows cut off", "no keys", "no rows", "no facts", "other format", "half facts"]
)
def test_damaged_files_are_not_trusted(tmp_path: Path, damage: str) -> None:
    keys = random_keys(200)
    first = made(tmp_path, keys)
    place = version_folder(tmp_path, "c", "1")
    files = {"keys": place / "keys.faiss", "rows": place / "rows.arrow", "facts": place / "facts.json"}
    name = damage.split()[0 if damage.endswith("off") else 1].replace("format", "facts")
    whole = files[name].read_bytes()
    files[name].unlink()  # who maps it goes on with it
    if damage.startswith("other"):
        files[name].write_bytes(whole.replace(b'"format": 2', b'"format": 0'))
    elif not damage.startswith("no "):
        files[name].write_bytes(whole[: len(whole) // 2])
    assert read_snapshot(place, "1") is None
    assert first.rows([3]) == [row(3)] and first.search(keys[:1], 1)[0][0][0] == 0
    assert len(made(tmp_path, keys)) == 200


@pytest.mark.parametrize("damage", ["cut off", "other"])
def test_a_damaged_index_is_not_used(tmp_path: Path, damage: str) -> None:
    keys = random_keys(500)
    first = made(tmp_path / "one", keys, graph=True)
    place = version_folder(tmp_path / "one", "c", "1")
    file = place / "graph.faiss"
    whole = file.read_bytes()
    made(tmp_path / "two", keys[:400], graph=True)
    other = version_folder(tmp_path / "two", "c", "1") / "graph.faiss"
    file.unlink()
    file.write_bytes(whole[: len(whole) // 2] if damage == "cut off" else other.read_bytes())
    found = read_snapshot(place, "1")
    assert found is not None and found.graph is None and not file.exists()
    snapshot_graph.build_graph(place)
    again = read_snapshot(place, "1")
    assert again is not None and again.graph is not None
    assert similarities(again.search(keys[:1], 3)[0]) == pytest.approx(similarities(first.search(keys[:1], 3)[0]), abs=1e-5)


def test_one_process_builds_an_index(tmp_path: Path) -> None:
    made(tmp_path, random_keys(500))
    place = version_folder(tmp_path, "c", "1")
    builders = [snapshot_graph.start_build(place) for _ in range(3)]
    assert [builder.wait(60) for builder in builders] == [0, 0, 0]
    found = read_snapshot(place, "1")
    assert found is not None and found.graph is not None and not snapshot_graph.is_being_built(place)
    assert (place / "graph.log").read_text() == ""


def test_a_damaged_version_is_replaced_while_its_index_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, random_keys(500))
    place, delete = version_folder(tmp_path, "c", "1"), shutil.rmtree

    def with_a_builder(path: Path, ignore_errors: bool = False) -> None:
        delete(path, ignore_errors)
        if path == place:
            path.mkdir()
            (path / "graph.json").touch()

    monkeypatch.setattr(shutil, "rmtree", with_a_builder)
    assert len(made(tmp_path, random_keys(400))) == 400
    assert os.listdir(tmp_path) == ["c-1"]


@pytest.mark.parametrize("replaced", [True, False])
def test_an_index_is_built_in_the_folder_of_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool) -> None:
    made(tmp_path, random_keys(500))
    place, build = version_folder(tmp_path, "c", "1"), snapshot_graph.build_graph

    def replace_first(folder: Path) -> None:
        if replaced:
            place.rename(tmp_path / "damaged")
            made(tmp_path, random_keys(400))
        build(folder)
        raise OSError("full")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(snapshot_graph, "build_graph", replace_first)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(sys, "argv", ["graph", str(place)])
    if replaced:
        snapshot_graph.main()
    else:
        with pytest.raises(OSError, match="full"):
            snapshot_graph.main()
    assert (place / "graph.faiss").exists() != replaced


def test_a_search_leaves_the_threads_of_torch_and_faiss(tmp_path: Path) -> None:
    import faiss
    import torch

    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    made(tmp_path, random_keys(400), graph=True).search(random_keys(30, seed=3), 3)
    assert (torch.get_num_threads(), faiss.omp_get_max_threads()) == before


KILLED = """
import os, signal, sys
sys.path[:0] = {tests!r}
from pathlib import Path
from test_snapshot_search import FIELDS, Content, pages, publish, random_keys, version_folder, write_snapshot

def slow(keys):
    for number, page in enumerate(pages(keys)):
        if {moment!r} == "rows" and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield page

keys, place = random_keys(900), version_folder(Path({folder!r}), "c", "1")
write_snapshot(place, Content(FIELDS, keys.shape, slow(keys)))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["rows", "publish"])
def test_a_killed_writer_leaves_nothing_valid(tmp_path: Path, moment: str) -> None:
    program = KILLED.format(tests=[str(Path(__file__).parent), str(SUPPORT)], folder=str(tmp_path), moment=moment)
    done = subprocess.run([sys.executable, "-c", program], timeout=120, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    place = version_folder(tmp_path, "c", "1")
    assert [path.name for path in tmp_path.iterdir()] == ["c-1.partial"] and read_snapshot(place, "1") is None
    assert len(made(tmp_path, random_keys(900))) == 900
    assert [path.name for path in tmp_path.iterdir()] == ["c-1"]


READER = """
import json, os, sys
from pathlib import Path
import numpy as np, psutil
from rapo_rllib.milvus.snapshot.files import read_snapshot

place, dim = Path(sys.argv[1]), int(sys.argv[2])
query = np.eye(dim, dtype=np.float32)[:1]
import faiss, pyarrow.ipc
before = psutil.Process().memory_full_info()
found = read_snapshot(place, "1")
exact = [found.search(query, 3, [np.arange(len(found)) < len(found) // 10])[0], found.search(query, 3)[0]]
found.rows(range(0, len(found), 7))
found.graph = None
exact.append(found.search(query, 3)[0])
print(json.dumps({"found": exact, "before": before.uss, "rss": before.rss}), flush=True)
sys.stdin.readline()
after = psutil.Process().memory_full_info()
print(json.dumps({"uss": after.uss - before.uss, "rss": after.rss - before.rss}), flush=True)
"""


def test_processes_share_the_memory(tmp_path: Path) -> None:
    dim, count = 768, 40_000
    keys = np.zeros((count, dim), dtype=np.float32)
    keys[np.arange(count), np.arange(count) % dim] = 1.0
    place = version_folder(tmp_path, "c", "1")
    batch = [[{**row(i), "vector": key} for i, key in enumerate(keys)]]
    assert write_snapshot(place, Content(FIELDS, keys.shape, batch))
    publish(place)
    command = [sys.executable, "-c", READER, str(place), str(dim)]
    readers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [json.loads(reader.stdout.readline()) for reader in readers]
    assert all(answer["found"] == answers[0]["found"] for answer in answers)
    memory = [json.loads(reader.communicate("\n")[0]) for reader in readers[:1]]
    for reader in readers[1:]:
        reader.communicate("\n")
    assert memory[0]["rss"] > count * dim * 4  # all keys were read
    assert memory[0]["uss"] < 0.4 * count * dim * 4  # and they are not the process's own


def test_a_new_version_takes_rows_over(tmp_path: Path) -> None:
    keys = random_keys(300)
    older = made(tmp_path, keys)
    place = version_folder(tmp_path, "c", "2")
    mask = np.arange(300) % 3 > 0
    added = pages(random_keys(10, seed=5))
    assert write_snapshot(place, Content(FIELDS, (210, 32), added, (older, mask)))
    publish(place)
    newer = read_snapshot(place, "2")
    assert newer is not None and len(newer) == 210 and not version_folder(tmp_path, "c", "1").exists()
    assert newer.rows(range(200)) == [row(n) for n in range(300) if n % 3 > 0]
    assert np.array_equal(keys_view(newer.keys)[:200], keys[mask])
    assert older.rows([299]) == [row(299)] and older.search(keys[:1], 1)[0][0][0] == 0  # who maps it, keeps it
    assert os.listdir(tmp_path) == ["c-2"]
