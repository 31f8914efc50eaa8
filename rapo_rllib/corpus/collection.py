"""Passages in one Milvus collection: stored by ``build.py``, found by ``search_tool.py``.

    queries -> embedding -> nearest keys ----+
    queries -> words -> BM25 of Milvus ------+-- ``ranking.fused`` -> ids -> rows -> Hit

What the collection was made with is kept beside it in notes, so that a search need not name the embedder again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapo_rllib.corpus.passages import MAX_SOURCE_ID_BYTES, Passage
from rapo_rllib.corpus.ranking import FUSION_DEPTH, chosen_mode, fused
from rapo_rllib.embedding.local import MIN_PROBE_COSINE, TextEncoder, probe_cosine, resolve_embedder, stored_probe
from rapo_rllib.milvus.handle import milvus_at
from rapo_rllib.milvus.notes import Notes
from rapo_rllib.milvus.schema import Field

DEFAULT_EMBEDDER = "all-minilm-l6-v2"
NOTE = "corpus"
FACTS = {"embedder": str, "fingerprint": str, "bm25": bool, "files": [str], "complete": bool, "probe": [float]}  # its shape
WORDS = "passage"  # title, newline, text: one column, because BM25 reads one
FIELDS = (Field("id", max_bytes=64), Field("source_id", max_bytes=MAX_SOURCE_ID_BYTES), Field("title"), Field(WORDS))
NAMES = tuple(field.name for field in FIELDS)


@dataclass(frozen=True)
class CorpusPlace:
    """The place of a corpus. ``prefix`` stands before the names of these fields where the user writes them, for messages."""

    uri: str = "./corpus.db"  # a Milvus Lite path ending in .db, or http(s)://host:port
    collection: str = "passages"
    db_name: str = ""
    timeout_s: float = 10.0  # of one request
    prefix: str = ""


@dataclass(frozen=True)
class Hit:
    """A passage that was found. ``score``: cosine (dense), BM25's, or the fusion's; comparable within one answer only."""

    passage: Passage
    score: float


class PassageCollection:
    """Cheap to construct; connects on first use. Safe to read from several threads; from several processes as a buffer is.

    Args:
        place: where it is.
        embedder: of passages and queries; None: the one it was made with, or the default one for a new collection.
        device: that the embedder runs on.

    Raises:
        ValueError: a URI, collection name or embedder that cannot be.
    """

    def __init__(self, place: CorpusPlace, embedder: str | None = None, device: str = "cpu") -> None:
        if not place.collection.isidentifier():
            raise ValueError(f"{place.prefix}collection must be letters, digits and underscores, got {place.collection!r}")
        self.place, self._device = place, device
        self.milvus = milvus_at(place.uri, place.db_name, place.timeout_s, uri_key=f"{place.prefix}uri")
        self._notes = Notes(self.milvus, place.collection)
        self._encoder = None if embedder is None else self._make_encoder(embedder)
        self._facts: dict[str, Any] | None = None

    @property
    def where(self) -> str:
        """The collection in words."""
        return f"collection {self.place.collection!r} at {self.milvus.uri}"

    def exists(self) -> bool:
        """Whether the collection exists."""
        return self.milvus.exists(self.place.collection)

    def facts(self) -> dict[str, Any]:
        """The facts of its making (``embedder``, ``fingerprint``, ``probe``, ``bm25``, ``files``), whether it is ``complete``.

        Raises:
            ValueError: there is no such collection, or it is no corpus.
            RetrievalError: Milvus does not answer.
        """
        if not self.exists():
            raise ValueError(
                f"{self.place.prefix}uri, {self.place.prefix}collection: there is no {self.where}. Make it: "
                f"rllib corpus build FILE --uri {self.place.uri} --collection {self.place.collection}"
            )
        found = self._notes.get(NOTE, FACTS)
        if found is None:
            raise ValueError(f"{self.place.prefix}collection: {self.where} is no corpus of this package; name another")
        return found

    def create(self) -> dict[str, Any]:
        """Create the collection unless it exists; returns its facts.

        Raises:
            ValueError: it exists and was made with another embedder.
            RetrievalError: Milvus does not answer.
        """
        if not self.exists():
            self._notes.drop()  # of a collection that was dropped halfway
            encoder = self._encoder = self._encoder or self._make_encoder(DEFAULT_EMBEDDER)
            words = self.milvus.makes_terms()
            made_by = {
                "embedder": _lasting_name(encoder.name),
                "fingerprint": _fingerprint(encoder),
                "probe": stored_probe(encoder.probe),
            }
            self.set_facts({**made_by, "bm25": words, "files": [], "complete": False})
            self.milvus.create(self.place.collection, FIELDS, encoder.dim, words_of=WORDS if words else None)
        self._open()
        return self.facts()

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Replace what :meth:`facts` says."""
        self._notes.set(NOTE, facts)

    def missing(self, passages: Sequence[Passage]) -> list[Passage]:
        """Those of ``passages`` that are not stored yet, each once."""
        unique = {passage.id: passage for passage in passages}
        present = {row["id"] for row in self.milvus.get(self.place.collection, list(unique), ["id"])}
        return [passage for key, passage in unique.items() if key not in present]

    def insert(self, passages: Sequence[Passage]) -> None:
        """Embed and store passages."""
        vectors = self.encoder.encode([_words(passage) for passage in passages], role="document")
        rows = [
            {"id": passage.id, "source_id": passage.source_id, "title": passage.title, WORDS: _words(passage)}
            for passage in passages
        ]
        self.milvus.upsert(self.place.collection, rows, vectors)

    def settle(self) -> None:
        """After the last insert: have the rows in their final form, the right index, and the keys in memory (Lite)."""
        self.milvus.flush(self.place.collection)
        self.milvus.set_index(self.place.collection)

    def search(self, queries: Sequence[str], top_k: int, mode: str = "auto") -> list[list[Hit]]:
        """For each query its ``top_k`` best passages, best first; fewer if fewer share a word with it (``bm25``).

        All queries are embedded as one batch and searched by one request per ranking.

        Raises:
            ValueError: there is no such collection, it was made with another embedder, or cannot be searched in this mode.
            RetrievalError: Milvus does not answer.
        """
        if not queries:
            return []
        mode = chosen_mode(mode, self._open()["bm25"], self.where)
        depth = max(FUSION_DEPTH, top_k) if mode == "hybrid" else top_k
        near: list[list[dict[str, Any]]] = []
        worded: list[list[dict[str, Any]]] = []
        if mode != "bm25":
            vectors = self.encoder.encode(queries, role="query")
            near = self.milvus.search(self.place.collection, vectors, depth, ["id"])
        if mode != "dense":
            worded = self.milvus.search_words(self.place.collection, queries, depth, ["id"])
        if mode == "hybrid":
            pairs = zip(near, worded, strict=True)
            ranked = [fused([[row["id"] for row in one] for one in pair], top_k) for pair in pairs]
        else:
            ranked = [[(row["id"], row["similarity"]) for row in rows] for rows in near or worded]
        return self._hits(ranked)

    def count(self) -> int:
        """Number of passages."""
        return self.milvus.count(self.place.collection)

    def drop(self) -> None:
        """Delete the passages and the notes about them."""
        self._facts = None
        self.milvus.drop(self.place.collection)
        self._notes.drop()  # last: by them a corpus is known, and dropping it again goes on after a kill

    def close(self) -> None:
        """Disconnect. The next call connects again."""
        self.milvus.close()

    @property
    def encoder(self) -> TextEncoder:
        """The embedder, once it is known."""
        self._open()
        assert self._encoder is not None
        return self._encoder

    def _hits(self, ranked: list[list[tuple[str, float]]]) -> list[list[Hit]]:
        """The passages of the ids."""
        ids = sorted({key for ranking in ranked for key, _ in ranking})
        rows = {row["id"]: row for row in self.milvus.get(self.place.collection, ids, NAMES, latest=False)}
        return [[Hit(_passage(rows[key]), score) for key, score in ranking if key in rows] for ranking in ranked]

    def _open(self) -> dict[str, Any]:
        """The facts, once the embedder was found to be the one that the passages were embedded with."""
        if self._facts is not None:
            return self._facts
        facts = self.facts()
        encoder = self._encoder or self._make_encoder(facts["embedder"], "collection")
        if different := _difference(facts, encoder):
            raise ValueError(
                f"{self.place.prefix}collection: {self.where} was embedded by {facts['embedder']!r}, and {encoder.name!r} as "
                f"it is here makes other vectors ({different}). Build it with this one (--replace), or name another."
            )
        self._encoder, self._facts = encoder, facts
        return facts

    def _make_encoder(self, name: str, key: str = "embedder") -> TextEncoder:
        return TextEncoder(name, key=f"{self.place.prefix}{key}", device=self._device)


def _fingerprint(encoder: TextEncoder) -> str:
    facts = {**encoder.facts, "text": "title + newline + text", "max_tokens": encoder.max_tokens}
    return json.dumps({**facts, **({"prompts": encoder.prompts} if encoder.prompts else {})}, sort_keys=True)


def _difference(facts: dict[str, Any], encoder: TextEncoder) -> str:
    """List what of an encoder has changed since the corpus was made; empty: their vectors are comparable."""
    if (here := _fingerprint(encoder)) != facts["fingerprint"]:
        return f"{facts['fingerprint']} there, {here} here"
    cosine = probe_cosine(facts["probe"], encoder.probe)
    return f"the cosine of a fixed text's vectors is {cosine:.3f}" if cosine < MIN_PROBE_COSINE else ""


def _lasting_name(name: str) -> str:
    """A folder's name as it is found from anywhere; other names as they are."""
    folder = Path(name).expanduser()
    return str(folder.absolute()) if folder.is_dir() and resolve_embedder(name, "embedder") == str(folder) else name


def _words(passage: Passage) -> str:
    return f"{passage.title}\n{passage.text}"


def _passage(row: dict[str, Any]) -> Passage:
    return Passage(row["id"], row["title"], row[WORDS][len(row["title"]) + 1 :], row["source_id"])
