"""Two Step-Trace Buffers, read as one: the off-policy agents' buffer, and the policy's own traces of this run.

Retriever --retrieve--> LayeredBuffer --one embedding--> both --by similarity--> the nearest of all
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rapo_rllib.buffer.drawing import random_traces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, RetrievedTrace, StepTrace


@dataclass(frozen=True)
class BufferView:
    """The buffer as the driver describes it to the env runners before a rollout."""

    grown_collection: str | None = None  # the policy's own traces; None: there are none
    grown_version: int = 0  # changes whenever these traces do


def grown_settings(settings: BufferSettings, collection: str) -> BufferSettings:
    """Return settings of the buffer of the policy's own traces: same place, same embedder, always searched exactly."""
    return replace(settings, collection=collection, traces=None, index="exact")


class LayeredBuffer:
    """Reader of the buffer and, once :meth:`set_view` has named it, of the collection of the policy's own traces."""

    def __init__(self, base: StepTraceBuffer) -> None:
        self._base = base
        self._grown: StepTraceBuffer | None = None
        self._version = 0

    def set_view(self, view: BufferView) -> None:
        """Switch to the policy's own traces of this view, as they are now."""
        if view.grown_collection is None:
            return
        if self._grown is None or self._grown.collection != view.grown_collection:
            if self._grown is not None:
                self._grown.close()
            self._grown = StepTraceBuffer(grown_settings(self._base.settings, view.grown_collection))
        elif self._version != view.grown_version:
            self._grown.drawable.forget()
        self._version = view.grown_version

    @property
    def _layers(self) -> list[StepTraceBuffer]:
        return [self._base] if self._grown is None else [self._base, self._grown]

    def close(self) -> None:
        """Close both buffers."""
        for buffer in self._layers:
            buffer.close()

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        """Find for each query the nearest traces of both buffers, nearest first. Raises as ``StepTraceBuffer.retrieve``."""
        if not queries:
            return []
        self._base.check_whole()
        vectors = self._base.embed(queries)
        found = zip(*(buffer.nearest(vectors, queries, top_k) for buffer in self._layers), strict=True)
        return [sorted(chain(*hits), key=lambda hit: -hit.similarity)[:top_k] for hits in found]

    def random_traces(self, queries: Sequence[HistoryQuery], rngs: Sequence[random.Random]) -> list[StepTrace | None]:
        """Draw for each query a random trace that :meth:`retrieve` could find; see ``drawing.py``."""
        for buffer in self._layers:
            buffer.check_whole()
        return random_traces([buffer.drawable for buffer in self._layers], queries, rngs)
