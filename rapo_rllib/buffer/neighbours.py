"""Measure how near keys are to each other, and to questions: a sample of keys against all of them, page by page.

Memory does not grow with the buffer: it holds the sample, one page and one block of similarities.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from rapo_rllib.buffer.store import StepTraceBuffer

if TYPE_CHECKING:
    import numpy as np

SAMPLE = 4096  # keys; of a smaller buffer all of them
BLOCK = 512  # keys of the sample that meet a page at a time

Item = TypeVar("Item")


class KeySample(Generic[Item]):
    """Keys of a stream, each as likely as any other (reservoir sampling), and what they are of; the same ones every time."""

    def __init__(self, size: int = SAMPLE) -> None:
        self.items: list[Item] = []
        self.vectors: list[np.ndarray] = []
        self._size, self._seen, self._rng = size, 0, random.Random(0)

    def offer(self, items: Sequence[Item], vectors: np.ndarray) -> None:
        """Look at a page: ``N`` ids, say, and vectors ``[N, D]``."""
        for item, vector in zip(items, vectors, strict=True):
            self._seen += 1
            place = len(self.items) if len(self.items) < self._size else self._rng.randrange(self._seen)
            if place < self._size:
                self.items[place : place + 1] = [item]
                self.vectors[place : place + 1] = [vector.copy()]  # a view would keep its page


def nearest_others(
    buffer: StepTraceBuffer, sample: KeySample[str], questions: Sequence[str], on_rows: Callable[[int], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine of every sampled key to the nearest other key, and of every question, as a query without history, to any.

    Args:
        buffer: all keys.
        sample: ``S`` keys of it, by ids.
        questions: ``Q`` texts.
        on_rows: told the number of rows after every page.

    Returns:
        Two arrays, ``[S]`` and ``[Q]``, within [-1, 1]; a buffer of one key has no other: -1.
    """
    import numpy as np

    keys = np.stack(sample.vectors)
    place_of = {trace_id: place for place, trace_id in enumerate(sample.items)}
    asked = buffer.embedder.encode([(question, "") for question in questions]) if questions else np.zeros((0, keys.shape[1]))
    to_keys, to_questions = np.full(len(keys), -1.0), np.full(len(asked), -1.0)
    for traces, vectors in buffer.reader.with_keys():
        own = {place_of[trace.id]: column for column, trace in enumerate(traces) if trace.id in place_of}
        for start in range(0, len(keys), BLOCK):
            similar = keys[start : start + BLOCK] @ vectors.T
            for row in range(len(similar)):
                if start + row in own:
                    similar[row, own[start + row]] = -1.0  # not with itself
            block = slice(start, start + BLOCK)
            to_keys[block] = np.maximum(to_keys[block], similar.max(axis=1))
        if len(asked):
            to_questions = np.maximum(to_questions, (asked @ vectors.T).max(axis=1))
        on_rows(len(traces))
    return np.clip(to_keys, -1.0, 1.0), np.clip(to_questions, -1.0, 1.0)
