"""A small corpus of real passages, built once: the paragraphs of 12 multi-hop questions."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from rapo_rllib.corpus.build import build_corpus
from rapo_rllib.corpus.collection import CorpusPlace, PassageCollection


@pytest.fixture(scope="session")
def questions(shared_data: Path) -> list[dict]:
    """Rows with question, answer and paragraphs, some of them gold; half HotpotQA, half 2WikiMultihopQA."""
    rows = []
    for name in ("hotpotqa_ctx", "2wiki_ctx"):
        with gzip.open(shared_data / "qa_ctx" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            rows += [json.loads(line) for line in islice(file, 6)]
    return rows


@pytest.fixture(scope="session")
def questions_file(questions: list[dict], tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in questions), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def corpus(questions_file: Path, tmp_path_factory) -> Iterator[PassageCollection]:
    """All paragraphs of the questions, in Milvus Lite."""
    found = PassageCollection(CorpusPlace(str(tmp_path_factory.mktemp("corpus") / "corpus.db")))
    build_corpus(found, questions_file, "paragraphs")
    yield found
    found.close()
