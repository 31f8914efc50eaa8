"""Building: once, again, after a kill, with another file, and what stops it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from processes import run_until_it_kills_itself

from rapo_rllib.corpus import build as build_module
from rapo_rllib.corpus.build import BuildProgress, build_corpus
from rapo_rllib.corpus.collection import CorpusPlace, PassageCollection


def passages_file(folder: Path, numbers: range, name: str = "p.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps({"id": i, "title": f"Town {i}", "text": f"It has {i} houses."}) + "\n" for i in numbers))
    return path


@pytest.fixture
def place(tmp_path: Path) -> CorpusPlace:
    return CorpusPlace(str(tmp_path / "corpus.db"))


@pytest.fixture
def collection(place: CorpusPlace, monkeypatch):
    monkeypatch.setattr(build_module, "BATCH", 8)
    found = PassageCollection(place)
    yield found
    found.close()


def build_and_die(place: CorpusPlace, path: Path) -> None:
    build_module.BATCH = 8

    def die(progress: BuildProgress) -> None:
        if progress.done == 16:
            os.kill(os.getpid(), signal.SIGKILL)

    build_corpus(PassageCollection(place), path, on_progress=die)


def test_a_build_that_was_killed_goes_on(collection: PassageCollection, tmp_path: Path) -> None:
    path = passages_file(tmp_path, range(42))
    run_until_it_kills_itself(build_and_die, collection.place, path)
    assert collection.count() == 16
    build_corpus(collection, passages_file(tmp_path, range(60, 63), "other.jsonl"))
    assert collection.facts()["begun"] == [str(path)]  # also when another file is whole
    embedded: list[int] = []
    encode = collection.encoder.encode
    collection.encoder.encode = lambda texts, role: embedded.append(len(texts)) or encode(texts, role=role)  # type: ignore
    assert build_corpus(collection, path) == BuildProgress(done=42, embedded=26, total=42)
    assert embedded == [8, 8, 8, 2]  # nothing twice
    assert collection.count() == 45
    assert collection.facts()["begun"] == []
    assert build_corpus(collection, path) == BuildProgress(done=42, embedded=0, total=42)
    assert collection.search(["Town 41"], 1, "bm25")[0][0].passage.source_id == "41"


def test_a_file_that_was_moved_before_it_was_whole(collection: PassageCollection, tmp_path: Path) -> None:
    path = passages_file(tmp_path, range(5))
    build_corpus(collection, path)
    collection.set_facts({**collection.facts(), "begun": [f"/gone/{path.name}", "/gone/other.jsonl"]})
    build_corpus(collection, path)
    assert collection.facts()["begun"] == ["/gone/other.jsonl"]


def test_another_file_adds_to_it_and_equal_passages_are_stored_once(collection: PassageCollection, tmp_path: Path) -> None:
    first, second = passages_file(tmp_path, range(5)), passages_file(tmp_path, range(3, 9), "more.jsonl")
    second.write_text(second.read_text() * 2)
    seen: list[BuildProgress] = []
    build_corpus(collection, first)
    assert collection.search(["It has 8 houses"], 1)[0][0].passage.title != "Town 8"
    done = build_corpus(collection, second, on_progress=seen.append)
    assert done == BuildProgress(done=12, embedded=4, total=12)
    assert [progress.done for progress in seen] == [8, 12]
    assert collection.count() == 9
    assert collection.facts()["files"] == [str(first), str(second)]
    assert collection.search(["It has 8 houses"], 1)[0][0].passage.title == "Town 8"  # the keys in memory are new


def test_a_wrong_file_is_refused_before_anything_is_stored(collection: PassageCollection, tmp_path: Path) -> None:
    path = passages_file(tmp_path, range(30))
    path.write_text(path.read_text() + '{"title": "no text"}\n')
    with pytest.raises(ValueError, match=r"p\.jsonl, line 31: field 'text'"):
        build_corpus(collection, path)
    assert not collection.exists()
    path.write_text("\n")
    with pytest.raises(ValueError, match=r"p\.jsonl holds no passages"):
        build_corpus(collection, path)
