r"""Measures the share of gold paragraphs of multi-hop questions that the search tool finds, and the time of a search.

    python benchmarks/search_recall.py --data DATA --uri ./corpus.db --json search_recall.json
    python benchmarks/search_recall.py --data DATA --quick             # a short form, with a corpus of its own

``DATA`` holds ``qa_ctx/{hotpotqa,2wiki}_ctx.jsonl.gz`` (question, paragraphs: [{title, text, gold}]) and
``corpus/corpus.jsonl.gz`` (title, text). The corpus is built at ``--uri`` first, or completed, unless ``--as-it-is`` is given;
embedding 45,000 passages takes from a quarter of an hour to several hours on two CPU cores. Questions are drawn with a fixed
seed and asked as they are: no model rewrites them, and the second hop is not asked separately. A gold paragraph counts as found
if exactly its title and text come back; ``gold_in_corpus`` says how many of the different ones could.

``--quick`` takes 20 questions of each data set, and as corpus their paragraphs alone, which is far easier.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rapo_rllib.cli.terminal import resumable
from rapo_rllib.corpus.build import build_corpus
from rapo_rllib.corpus.collection import CorpusPlace, Hit, PassageCollection
from rapo_rllib.corpus.passages import Passage, passage_id

DATASETS = {"hotpotqa": "hotpotqa_ctx", "2wiki": "2wiki_ctx"}
MODES = ("dense", "bm25", "hybrid")
DEPTHS = (3, 10)
BATCH = 32  # queries searched together
QUICK_QUESTIONS = 20


def sampled_questions(data: Path, name: str, count: int, seed: int) -> list[dict[str, Any]]:
    """``count`` rows of a data set."""
    with gzip.open(data / "qa_ctx" / f"{DATASETS[name]}.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return random.Random(seed).sample(rows, min(count, len(rows)))


def gold_paragraphs(row: dict[str, Any]) -> set[str]:
    """Ids of the paragraphs that the answer rests on."""
    return {passage_id(paragraph["title"], paragraph["text"]) for paragraph in row["paragraphs"] if paragraph["gold"]}


def recall(gold: Sequence[set[str]], found: Sequence[Sequence[Hit]], depth: int) -> float:
    """Share of all gold paragraphs that are among the first ``depth`` hits of their question."""
    hit = sum(len(ids & {one.passage.id for one in hits[:depth]}) for ids, hits in zip(gold, found, strict=True))
    return hit / sum(map(len, gold))


def measured(corpus: PassageCollection, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Recall and time of every mode on the questions of one data set."""
    gold = [gold_paragraphs(row) for row in rows]
    ids = set().union(*gold)
    absent = corpus.missing([Passage(key, "", "") for key in ids])
    figures: dict[str, Any] = {"questions": len(rows), "gold": sum(map(len, gold)), "gold_in_corpus": len(ids) - len(absent)}
    queries = [row["question"] for row in rows]
    for mode in MODES:
        corpus.search(queries[:1], 1, mode)  # what only the first search takes
        started = time.perf_counter()
        found: list[list[Hit]] = []
        for start in range(0, len(queries), BATCH):
            found += corpus.search(queries[start : start + BATCH], max(DEPTHS), mode)
        seconds = time.perf_counter() - started
        figures[mode] = {f"recall_at_{depth}": round(recall(gold, found, depth), 3) for depth in DEPTHS}
        figures[mode]["ms_per_query"] = round(seconds / len(queries) * 1e3, 1)
    return figures


def main() -> None:
    """Parse the command line, build, measure, print."""
    parser = argparse.ArgumentParser(description="Recall of gold paragraphs by the search tool's ranking.")
    parser.add_argument("--data", type=Path, required=True, help="folder with qa_ctx and corpus")
    parser.add_argument("--uri", default="./corpus.db", help="Milvus Lite path or server")
    parser.add_argument("--collection", default="passages")
    parser.add_argument("--questions", type=int, default=300, help="of each data set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--as-it-is", action="store_true", help="do not build or complete the corpus")
    parser.add_argument("--quick", action="store_true", help="a short form, with a corpus of its own")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    count = QUICK_QUESTIONS if options.quick else options.questions
    rows = {name: sampled_questions(options.data, name, count, options.seed) for name in DATASETS}
    with tempfile.TemporaryDirectory() as folder:
        uri = f"{folder}/corpus.db" if options.quick else options.uri
        corpus = PassageCollection(CorpusPlace(uri, options.collection, timeout_s=120.0))
        try:
            if options.quick:
                file = Path(folder, "questions.jsonl")
                file.write_text("".join(json.dumps(row) + "\n" for some in rows.values() for row in some), encoding="utf-8")
                build_corpus(corpus, file, "paragraphs")
            elif not options.as_it_is:
                with resumable("passages") as display:
                    build_corpus(corpus, options.data / "corpus" / "corpus.jsonl.gz", on_progress=display)
            figures = {"passages": corpus.count(), **{name: measured(corpus, some) for name, some in rows.items()}}
        finally:
            corpus.close()
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
