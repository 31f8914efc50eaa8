"""Rows to passages, and what is said about wrong ones."""

import gzip
import json
from pathlib import Path

import pytest

from rapo_rllib.corpus.passages import Passage, passage_id, read_passages


def written(path: Path, *rows) -> Path:
    lines = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines)
    return path


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz"])
def test_a_row_is_a_passage(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, {"id": 7, "title": "A", "text": "b c", "src": "x"}, "", {"text": "d"})
    assert list(read_passages(path)) == [
        Passage(passage_id("A", "b c"), "A", "b c", "7"),
        Passage(passage_id("", "d"), "", "d"),
    ]


def test_a_row_holds_a_list_of_passages(tmp_path: Path) -> None:
    rows = [{"id": "q1", "paragraphs": [{"title": "A", "text": "b", "gold": True}, {"title": "C", "text": "d"}]}]
    found = list(read_passages(written(tmp_path / "p.jsonl", *rows), "paragraphs"))
    assert [(p.title, p.text, p.source_id) for p in found] == [("A", "b", ""), ("C", "d", "")]


def test_the_id_is_that_of_the_content() -> None:
    assert passage_id("A", "b") == passage_id("A", "b") != passage_id("A b", "")
    assert len(passage_id("é", "x")) == 32


@pytest.mark.parametrize(
    ("row", "passages", "message"),
    [
        ("{", None, r"p\.jsonl, line 2: no JSON"),
        ({"title": "A"}, None, r"line 2: field 'text' must be a text that is not empty, got None; fields of this row: title"),
        ({"text": " "}, None, r"line 2: field 'text' must be a text that is not empty"),
        ({"text": "a", "title": 3}, None, r"line 2: field 'title' must be a text, got 3"),
        ({"text": "a", "id": 1.5}, None, r"line 2: field 'id' must be a text or a whole number, got 1\.5"),
        ({"text": "é" * 33_000}, None, r"line 2: field 'text' has 66001 bytes .* Milvus stores 65535\. Split or shorten it"),
        ({"text": "a", "id": "i" * 1025}, None, r"line 2: field 'id' has 1025 bytes"),
        ({"text": "a \ud800"}, None, r"line 2: field 'text' holds half a character"),
        ({"text": "a"}, "ctx", r"line 2: field 'ctx' must be a list of passages; fields of this row: text"),
        ({"ctx": ["a"]}, "ctx", r"line 2, ctx\[0\]: expected a JSON object, got str"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row, passages: str | None, message: str) -> None:
    good = {"text": "fine", "ctx": []}
    with pytest.raises(ValueError, match=message):
        list(read_passages(written(tmp_path / "p.jsonl", good, row), passages))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*gone\.jsonl; correct the path"):
        list(read_passages(tmp_path / "gone.jsonl"))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 9000)[:-20])
    with pytest.raises(ValueError, match=r"cut\.jsonl\.gz cannot be read after line"):
        list(read_passages(tmp_path / "cut.jsonl.gz"))


def test_real_passages(shared_data: Path) -> None:
    found = list(read_passages(shared_data / "corpus" / "corpus.jsonl.gz"))
    assert len(found) == len({passage.id for passage in found}) == 45_489
    assert (found[1].title, found[1].source_id) == ("Shirley Temple", "1")
