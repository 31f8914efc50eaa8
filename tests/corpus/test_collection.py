"""Real passages, real embedder, real Milvus Lite: what is found, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rapo_rllib.corpus.collection import CorpusPlace, PassageCollection, fused
from rapo_rllib.corpus.passages import passage_id
from rapo_rllib.embedding.local import resolve_embedder

# Of the 34 gold paragraphs, among the first 3 and 10. Measured: 0.59 and 0.76, 0.56 and 0.71, 0.53 and 0.76. A question may
# have four gold paragraphs, and the second hop often shares nothing with the question.
BOUNDS = {"dense": (0.52, 0.7), "bm25": (0.5, 0.64), "hybrid": (0.46, 0.7)}


def gold_ids(row: dict) -> set[str]:
    return {passage_id(p["title"], p["text"]) for p in row["paragraphs"] if p["gold"]}


@pytest.mark.parametrize("mode", BOUNDS)
def test_recall_of_gold_paragraphs(corpus: PassageCollection, questions: list[dict], mode: str) -> None:
    found = corpus.search([row["question"] for row in questions], 10, mode)
    gold = [gold_ids(row) for row in questions]
    for top_k, bound in zip((3, 10), BOUNDS[mode], strict=True):
        hit = sum(len(ids & {hit.passage.id for hit in hits[:top_k]}) for ids, hits in zip(gold, found, strict=True))
        recall = hit / sum(map(len, gold))
        print(f"{mode}: recall at {top_k}: {recall:.3f}")  # noqa: T201
        assert recall >= bound
    assert all(len({hit.passage.id for hit in hits}) == len(hits) == 10 for hits in found)
    assert all([hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True) for hits in found)


def test_a_hit_is_the_passage_as_it_was_read(corpus: PassageCollection, questions: list[dict]) -> None:
    paragraph = questions[0]["paragraphs"][0]
    for mode in ("dense", "bm25", "hybrid"):
        ((hit,),) = corpus.search([f"{paragraph['title']} {paragraph['text']}"], 1, mode)
        assert (hit.passage.title, hit.passage.text) == (paragraph["title"], paragraph["text"])
        assert hit.score > 0


def test_words_that_occur_nowhere_find_nothing(corpus: PassageCollection) -> None:
    assert corpus.search(["zzyzx qwertz"], 3, "bm25") == [[]]
    assert len(corpus.search(["zzyzx qwertz"], 3, "dense")[0]) == 3
    assert len(corpus.search(["zzyzx qwertz"], 3, "hybrid")[0]) == 3
    assert corpus.search([], 3) == []


def test_hand_worked_fusion() -> None:
    found = fused([["a", "b", "c"], ["c", "a"]], 3)
    assert [key for key, _ in found] == ["a", "c", "b"]
    assert [score for _, score in found] == pytest.approx([1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62])
    assert [key for key, _ in fused([["a"], []], 3)] == ["a"]
    assert [key for key, _ in fused([["a", "b"], ["b", "a"]], 1)] == ["a"]  # of equal ones the first ranking's


def test_what_is_no_corpus_is_refused(corpus: PassageCollection) -> None:
    from rapo_rllib.milvus.schema import Field

    corpus.milvus.create("foreign", [Field("id")], 3)
    with pytest.raises(ValueError, match=r"collection: collection 'foreign' at .* is no corpus of this package"):
        PassageCollection(CorpusPlace(corpus.place.uri, "foreign")).search(["a"], 1)
    with pytest.raises(
        ValueError, match=r"there is no collection 'gone' at .*\. Make it: rllib corpus build FILE --uri .*gone"
    ):
        PassageCollection(CorpusPlace(corpus.place.uri, "gone")).search(["a"], 1)
    with pytest.raises(ValueError, match=r"mode = 'sparse': must be one of dense, bm25, hybrid"):
        corpus.search(["a"], 1, "sparse")
    with pytest.raises(ValueError, match=r"--collection must be letters"):
        PassageCollection(CorpusPlace(collection="a b", prefix="--"))
    with pytest.raises(ValueError, match=r"--uri: 'corpus' is neither a Milvus Lite path"):
        PassageCollection(CorpusPlace("corpus", prefix="--"))
    with pytest.raises(ValueError, match=r"--embedder: there is no sentence-transformers model in '\./nowhere'"):
        PassageCollection(CorpusPlace(prefix="--"), embedder="./nowhere")


def test_another_embedder_is_refused(corpus: PassageCollection, monkeypatch) -> None:
    other = PassageCollection(corpus.place, embedder="all-minilm-l6-v2")
    encoder = other._encoder
    assert encoder is not None
    encoder.pooling = "last_token"
    with pytest.raises(ValueError, match=r"collection: collection 'passages' at .* was embedded by 'all-minilm-l6-v2', .*pool"):
        other.search(["a"], 1)
    other.close()


def test_the_same_weights_with_another_pooling_are_refused(corpus: PassageCollection, tmp_path: Path) -> None:
    folder = tmp_path / "cls"
    shutil.copytree(resolve_embedder("all-minilm-l6-v2", "embedder"), folder)
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"word_embedding_dimension": 384, "pooling_mode_cls_token": True}))
    other = PassageCollection(corpus.place, embedder=str(folder))
    with pytest.raises(
        ValueError, match=r"and '.*cls' as it is here makes other vectors \(the vector of a fixed text: a cosine of 0\.[0-8]"
    ):
        other.search(["a"], 1)
    other.close()
