"""The vector of a history: the embedding of the text that ``keys.py`` makes of it.

Flow: ``store.py`` -> here -> ``embedding/local.py`` (in this process) or ``embedding/endpoint.py`` (behind an address)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rapo_rllib.buffer.keys import (
    MAX_KEY_TOKENS,
    MAX_QUESTION_TOKENS,
    RECIPES,
    goal_and_recent,
    last_characters,
)
from rapo_rllib.embedding.endpoint import EndpointEncoder, is_endpoint, split_endpoint
from rapo_rllib.embedding.local import TextEncoder, resolve_embedder

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerBase

EMBEDDER_KEY = "step_trace_buffer.embedder"  # what the user calls it, for messages


class Embedder:
    """Embedder of (question, history) pairs. Cheap to construct and to pickle; the model loads on first use, once per process.

    Args:
        name_or_path: of a sentence-transformers model, or ``http(s)://host:port/v1#model`` of an endpoint.
        pooling: see ``TextEncoder``; an endpoint pools as it likes.
        key_recipe: which text stands for a pair (``keys.py``).
        recent_tokens: length of a ``goal_and_recent`` key that is the history's end alone; None: question and history.

    Raises:
        ValueError: ``name_or_path`` names no model, or a setting does not apply to this kind of embedder.
    """

    def __init__(
        self,
        name_or_path: str,
        pooling: str = "mean",
        key_recipe: str = "goal_and_recent",
        recent_tokens: int | None = None,
    ) -> None:
        check_embedder(name_or_path, pooling)
        self.encoder: TextEncoder | EndpointEncoder
        if is_endpoint(name_or_path):
            self.encoder = EndpointEncoder(name_or_path, key=EMBEDDER_KEY)
        else:
            self.encoder = TextEncoder(name_or_path, pooling, key=EMBEDDER_KEY)
        self.name, self.pooling, self.key_recipe = name_or_path, pooling, key_recipe
        self._recent_tokens = recent_tokens

    def encode(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Embed the keys of (question, history) pairs, pooled and normalised: float32 ``[N, D]``.

        Raises:
            ValueError: the model's tokenizer gives no character offsets, or the model reads too few tokens for a key.
            RetrievalError: an endpoint does not answer.
        """
        max_tokens = self._max_tokens

        def text_of(pair: tuple[str, str], tokenizer: PreTrainedTokenizerBase) -> str:
            if self.key_recipe == "goal_and_recent":
                return goal_and_recent(*pair, tokenizer, max_tokens, self._recent_tokens)
            return last_characters(*pair, tokenizer, max_tokens)

        place_of = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}  # first steps of a question share a key
        vectors: np.ndarray = self.encoder.encode(list(place_of), text_of)
        return vectors[[place_of[pair] for pair in pairs]] if pairs else vectors

    @property
    def dim(self) -> int:
        """Width ``D`` of an embedding."""
        return self.encoder.dim

    @property
    def fingerprint(self) -> str:
        """The facts that decide whether two embedders make comparable vectors, as JSON: weights, key rule, length, pooling."""
        facts = {**self.encoder.facts, "recipe": RECIPES[self.key_recipe], "max_tokens": self._max_tokens}
        if self._recent_tokens is not None:
            facts |= {"recipe": "history[-rest:]; question, where there is none", "key_history_tokens": self._recent_tokens}
        return json.dumps(facts, sort_keys=True)

    @property
    def _max_tokens(self) -> int:
        tokenizer, limit = self.encoder.tokenizer, self.encoder.max_tokens
        max_tokens = min(limit or MAX_KEY_TOKENS, MAX_KEY_TOKENS)
        if not getattr(tokenizer, "is_fast", False) or max_tokens <= MAX_QUESTION_TOKENS + 2:
            raise ValueError(
                f"{EMBEDDER_KEY}: {self.name!r} needs a fast tokenizer (tokenizer.json) and a max_seq_length above "
                f"{MAX_QUESTION_TOKENS + 2}; it has {type(tokenizer).__name__} and {limit}"
            )
        return max_tokens


def check_embedder(name_or_path: str, pooling: str) -> None:
    """Refuse inconsistent settings and unknown names, without loading a model or asking an endpoint.

    Raises:
        ValueError: the message names the setting and a remedy.
    """
    if not is_endpoint(name_or_path):
        resolve_embedder(name_or_path, EMBEDDER_KEY)
        return
    split_endpoint(name_or_path, EMBEDDER_KEY)
    if pooling != "mean":
        raise ValueError(
            f"step_trace_buffer.pooling = {pooling!r}: the endpoint {name_or_path!r} pools by itself; leave pooling out, or "
            "name a sentence-transformers model as embedder"
        )
