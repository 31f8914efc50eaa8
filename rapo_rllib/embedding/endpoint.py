"""Embed texts by an OpenAI-compatible endpoint (``POST .../embeddings``). A sibling of ``local.py``.

    "http://host:port/v1#model" -> texts, cut by MiniLM's tokenizer -> JsonService, 64 texts a request -> unit vectors

If the endpoint wants a key, put it into the environment variable ``EMBEDDER_API_KEY`` of every process that embeds; the key is
read anew for each request and kept nowhere. The endpoint's weights are hidden, so the vector of a fixed text
(:attr:`EndpointEncoder.probe`) is stored with a collection: another model behind the same name gives another vector.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from rapo_rllib.embedding.local import BATCH_SIZE, PROBE, Item, resolve_embedder
from rapo_rllib.errors import RetrievalError, ServiceError
from rapo_rllib.services.credentials import check_address
from rapo_rllib.services.http_json import JsonService

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerBase

API_KEY_VARIABLE = "EMBEDDER_API_KEY"
TOKENIZER = "all-minilm-l6-v2"
TIMEOUT_S = 30.0  # of one try of one request
ATTEMPTS = 4  # of one request, while the endpoint is busy or does not answer


def is_endpoint(name: str) -> bool:
    """Return whether an embedder's name is the address of an endpoint."""
    return name.startswith(("http://", "https://"))


def split_endpoint(name: str, key: str) -> tuple[str, str]:
    """Split ``http(s)://host:port/v1#model`` into base address and model.

    Raises:
        ValueError: one of them is missing, or the address holds a password. The message names ``key``, the user's setting.
    """
    check_address(name, key, f"put the endpoint's key into the environment variable {API_KEY_VARIABLE}")
    address, _, model = name.partition("#")
    if not address.partition("://")[2].strip("/") or not model:
        raise ValueError(
            f"{key} = {name!r}: an endpoint is named by its address and, behind a #, its model, for example "
            "http://127.0.0.1:8000/v1#all-MiniLM-L6-v2"
        )
    return address.rstrip("/"), model


class EndpointEncoder:
    """Embedder of texts. Cheap to construct and to pickle; asks the endpoint on first use.

    Args:
        name: ``http(s)://host:port/v1#model``.
        key: what the user calls ``name``, for messages.

    Raises:
        ValueError: ``name`` lacks the address or the model.
    """

    max_tokens: int | None = None  # an endpoint does not say how much it reads

    def __init__(self, name: str, *, key: str) -> None:
        self.name, self._key = name, key
        self._address, self._model = split_endpoint(name, key)
        self._service = JsonService("embedder", TIMEOUT_S, ATTEMPTS, 2 * TIMEOUT_S)
        self._probe: np.ndarray | None = None

    def encode(
        self, items: Sequence[Item], text_of: Callable[[Item, PreTrainedTokenizerBase], str] | None = None
    ) -> np.ndarray:
        """Embed texts, normalised: float32 ``[N, D]``.

        Args:
            items: texts, or items that ``text_of`` turns into texts.
            text_of: makes a text from an item and the tokenizer; None: ``items`` are texts.

        Raises:
            RetrievalError: the endpoint does not answer, or not with one finite vector of the known width per text.
            ValueError: the tokenizer cannot be loaded.
        """
        import numpy as np

        if not items:
            return np.zeros((0, self.dim), dtype=np.float32)
        with _lock:  # a fast tokenizer must not be used by two threads at once
            texts = [text_of(item, self.tokenizer) if text_of else str(item) for item in items]
        dim = self.dim
        batches = [self._asked(texts[start : start + BATCH_SIZE]) for start in range(0, len(texts), BATCH_SIZE)]
        for vectors in batches:
            if vectors.shape[1] != dim:
                raise RetrievalError(f"{self.name} answers with vectors of width {vectors.shape[1]}; before, it was {dim}")
        return np.concatenate(batches)

    @property
    def dim(self) -> int:
        """Width ``D`` of an embedding."""
        return self.probe.shape[0]

    @property
    def probe(self) -> np.ndarray:
        """The vector of a fixed text, ``[D]``, by which a collection recognises the model. It is requested once."""
        if self._probe is None:
            self._probe = self._asked([PROBE])[0]
        return self._probe

    @property
    def facts(self) -> dict[str, Any]:
        """The facts in which two encoders with comparable vectors agree, beside the probe. Not the address: hosts move."""
        with _lock:
            digest = hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16]
        return {"endpoint_model": self._model, "dim": self.dim, "normalised": True, "tokenizer": digest}

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that texts are cut with."""
        with _lock:  # functools.cache alone would load twice when two threads ask at the same time
            return _load_tokenizer()

    def _asked(self, texts: list[str]) -> np.ndarray:
        """Embed texts with one request: unit vectors ``[len(texts), D]``."""
        import numpy as np

        key = os.environ.get(API_KEY_VARIABLE, "")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"model": self._model, "input": texts, "encoding_format": "float"}
        try:
            reply = self._service.request("POST", f"{self._address}/embeddings", json=body, headers=headers)
        except ServiceError as error:
            hint = f"; does it want a key in {API_KEY_VARIABLE}?" if error.status in (401, 403) else ""
            raise RetrievalError(f"{self._key} {self.name}: {error}{hint}") from error
        try:
            found = {item["index"]: item["embedding"] for item in reply["data"]}
            vectors = np.array([found[number] for number in range(len(texts))], dtype=np.float32).reshape(len(texts), -1)
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        except (KeyError, TypeError, ValueError):
            norms = np.zeros(1)
        if not norms.all() or not np.isfinite(norms).all():
            raise RetrievalError(f"{self._key} {self.name} does not answer {len(texts)} texts by as many embeddings")
        return vectors / norms


_lock = threading.RLock()


@cache
def _load_tokenizer() -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_embedder(TOKENIZER, "the tokenizer of an endpoint's texts"))
