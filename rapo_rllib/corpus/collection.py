"""Passages in one Milvus collection: stored by ``build.py``, found by ``search_tool.py``.

    queries -> embedding -> nearest keys ----+
    queries -> words -> BM25 of Milvus ------+-- :func:`fused` -> ids -> rows -> Hit

The rankings are fused here and not by Milvus' ``hybrid_search``: with a Lite path the dense ranking comes from memory, and so
both kinds of Milvus use the same formula. Notes beside the collection tell how it was made, so that a search need not name the
embedder again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rapo_rllib.corpus.passages import MAX_SOURCE_ID_BYTES, Passage
from rapo_rllib.embedding.local import TextEncoder
from rapo_rllib.embedding.made_by import difference, lasting_name, made_by
from rapo_rllib.milvus.collection import Collection
from rapo_rllib.milvus.handle import milvus_at
from rapo_rllib.milvus.schema import Field

MODES = ("dense", "bm25", "hybrid")
FUSION_CONSTANT = 60  # k of Cormack et al. (2009), who introduced the formula
FUSION_DEPTH = 50  # how far down either ranking is read
DEFAULT_EMBEDDER = "all-minilm-l6-v2"
NOTE = "corpus"
WORDS = "passage"  # title, newline, text: one column, because BM25 reads one
FIELDS = (Field("id", max_bytes=64), Field("source_id", max_bytes=MAX_SOURCE_ID_BYTES), Field("title"), Field(WORDS))
NAMES = tuple(field.name for field in FIELDS)


@dataclass(frozen=True)
class CorpusPlace:
    """The place of a corpus. Messages put ``prefix`` before the names of these fields, as the user writes them."""

    uri: str = "./corpus.db"  # a Milvus Lite path ending in .db, or http(s)://host:port[/database]
    collection: str = "passages"
    timeout_s: float = 10.0  # of one request
    prefix: str = ""


@dataclass(frozen=True)
class Hit:
    """A passage that was found. ``score``: cosine (dense), BM25's, or the fusion's; comparable within one answer only."""

    passage: Passage
    score: float


class PassageCollection(Collection):
    """The passages of a corpus; connects on first use. Threads may read at once; processes may as with ``StepTraceBuffer``.

    Args:
        place: address of the collection.
        embedder: of passages and queries; None: the one that the collection was made with, for a new one the default.
        device: that the embedder runs on.

    Raises:
        ValueError: the URI, the collection name or the embedder is invalid.
    """

    def __init__(self, place: CorpusPlace, embedder: str | None = None, device: str = "cpu") -> None:
        if not place.collection.isidentifier():
            raise ValueError(f"{place.prefix}collection must be letters, digits and underscores, got {place.collection!r}")
        super().__init__(milvus_at(place.uri, place.timeout_s, uri_key=f"{place.prefix}uri"), place.collection)
        self.place, self._device = place, device
        self._encoder = None if embedder is None else self._make_encoder(embedder)
        self._facts: dict[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        """Read how the collection was made (``embedder``, ``fingerprint``, ``probe``, ``files``), and what is ``begun``.

        ``begun`` lists the files of which only a part is stored.

        Raises:
            ValueError: there is no such collection, or it is no corpus.
            RetrievalError: Milvus does not answer.
        """
        if not self.exists():
            raise ValueError(
                f"{self.place.prefix}uri, {self.place.prefix}collection: there is no collection {self.where}. Make it: "
                f"rllib corpus build FILE --uri {self.place.uri} --collection {self.collection}"
            )
        found = self.note(NOTE)
        if found is None:
            raise ValueError(
                f"{self.place.prefix}collection: collection {self.where} is no corpus of this package; name another"
            )
        return {"begun": [], **found}

    def create(self) -> dict[str, Any]:
        """Create the collection unless it exists; returns its facts.

        Raises:
            ValueError: it exists and was made with another embedder.
            RetrievalError: Milvus does not answer.
        """
        if not self.exists():
            self.drop_notes()  # of a collection that was dropped halfway
            encoder = self._encoder = self._encoder or self._make_encoder(DEFAULT_EMBEDDER)
            facts = {"embedder": lasting_name(encoder.name), **made_by(_fingerprint(encoder), encoder.probe)}
            self.set_facts({**facts, "files": [], "begun": []})
            self.milvus.create(self.collection, FIELDS, encoder.dim, words_of=WORDS)
        self._open()
        return self.facts()

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Replace the facts that :meth:`facts` reads."""
        self.set_note(NOTE, facts)

    def missing(self, passages: Sequence[Passage]) -> list[Passage]:
        """Return the ``passages`` that are not stored yet, each once."""
        unique = {passage.id: passage for passage in passages}
        present = {row["id"] for row in self.milvus.get(self.collection, list(unique), ["id"])}
        return [passage for key, passage in unique.items() if key not in present]

    def insert(self, passages: Sequence[Passage]) -> None:
        """Embed and store passages."""
        vectors = self.encoder.encode([_words(passage) for passage in passages], role="document")
        rows = [
            {"id": passage.id, "source_id": passage.source_id, "title": passage.title, WORDS: _words(passage)}
            for passage in passages
        ]
        self.milvus.upsert(self.collection, rows, vectors)

    def settle(self) -> None:
        """Finish the collection after the last insert: flush its rows, set the right index, and have keys in memory (Lite)."""
        self.milvus.flush(self.collection)
        self.milvus.set_index(self.collection)

    def search(self, queries: Sequence[str], top_k: int, mode: str = "hybrid") -> list[list[Hit]]:
        """Find the ``top_k`` best passages for each query, best first; fewer if fewer share a word with the query (``bm25``).

        All queries are embedded as one batch and searched by one request per ranking.

        Raises:
            ValueError: there is no such collection or mode, or the collection was made with another embedder.
            RetrievalError: Milvus does not answer.
        """
        if not queries:
            return []
        check_mode(mode, "mode")
        self._open()
        depth = max(FUSION_DEPTH, top_k) if mode == "hybrid" else top_k
        near: list[list[dict[str, Any]]] = []
        worded: list[list[dict[str, Any]]] = []
        if mode != "bm25":
            vectors = self.encoder.encode(queries, role="query")
            near = self.milvus.search(self.collection, vectors, depth, ["id"])
        if mode != "dense":
            worded = self.milvus.search_words(self.collection, queries, depth, ["id"])
        if mode == "hybrid":
            pairs = zip(near, worded, strict=True)
            ranked = [fused([[row["id"] for row in one] for one in pair], top_k) for pair in pairs]
        else:
            ranked = [[(row["id"], row["similarity"]) for row in rows] for rows in near or worded]
        return self._hits(ranked)

    def drop(self) -> None:
        """Delete the passages and the notes about them."""
        self._facts = None
        self.milvus.drop(self.collection)
        self.drop_notes()

    @property
    def encoder(self) -> TextEncoder:
        """The embedder of the collection, found and checked on first use."""
        self._open()
        assert self._encoder is not None
        return self._encoder

    def _hits(self, ranked: list[list[tuple[str, float]]]) -> list[list[Hit]]:
        """Read the passages of ranked ids; an id that is not stored any more is left out."""
        ids = sorted({key for ranking in ranked for key, _ in ranking})
        rows = {row["id"]: row for row in self.milvus.get(self.collection, ids, NAMES, latest=False)}
        return [[Hit(_passage(rows[key]), score) for key, score in ranking if key in rows] for ranking in ranked]

    def _open(self) -> dict[str, Any]:
        """Read the facts, and check that the embedder is the one that the passages were embedded with."""
        if self._facts is not None:
            return self._facts
        facts = self.facts()
        encoder = self._encoder or self._make_encoder(facts["embedder"], "collection")
        if different := difference(facts, _fingerprint(encoder), encoder.probe):
            raise ValueError(
                f"{self.place.prefix}collection: collection {self.where} was embedded by {facts['embedder']!r}, and "
                f"{encoder.name!r} as it is here makes other vectors ({different}). Build it with this one (--replace), or "
                "name another."
            )
        self._encoder, self._facts = encoder, facts
        return facts

    def _make_encoder(self, name: str, key: str = "embedder") -> TextEncoder:
        return TextEncoder(name, key=f"{self.place.prefix}{key}", device=self._device)


def check_mode(mode: str, key: str) -> None:
    """Refuse a mode that is none of ``MODES`` by a ``ValueError`` that names ``key``."""
    if mode not in MODES:
        raise ValueError(f"{key} = {mode!r}: must be one of {', '.join(MODES)}")


def fused(rankings: Sequence[Sequence[str]], top_k: int) -> list[tuple[str, float]]:
    """Fuse rankings by reciprocal rank: ``top_k`` ids with the highest ``sum over rankings of 1 / (60 + rank)``, ranks from 1.

    >>> fused([["a", "b"], ["b", "c"]], 2)[0][0]
    'b'
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, start=1):
            scores[key] = scores.get(key, 0.0) + 1 / (FUSION_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: -item[1])[:top_k]


def _fingerprint(encoder: TextEncoder) -> str:
    facts = {**encoder.facts, "text": "title + newline + text", "max_tokens": encoder.max_tokens}
    return json.dumps({**facts, **({"prompts": encoder.prompts} if encoder.prompts else {})}, sort_keys=True)


def _words(passage: Passage) -> str:
    return f"{passage.title}\n{passage.text}"


def _passage(row: dict[str, Any]) -> Passage:
    return Passage(row["id"], row["title"], row[WORDS][len(row["title"]) + 1 :], row["source_id"])
