"""Draw step traces at random, uniformly among those that a query may be answered by: what retrieval noise shows.

    random_traces: Drawable.allowed(query) of each layer --one number per generator--> Drawable.read

The set is a search's: ``settings.filter``, no reward of 0 or less where ``best_reward`` selects.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from rapo_rllib.buffer.choices import conditions_of
from rapo_rllib.buffer.rows import FIELDS, NAMES, trace_of
from rapo_rllib.buffer.shown_answers import shows_answer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.expressions import Conditions, mask_of
from rapo_rllib.milvus.handle import Milvus
from rapo_rllib.milvus.lite.table import Table
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, StepTrace

TRIES = 5  # drawings of one batch; after each, the rows are listed anew
Place = tuple[int, str]  # the number of a layer, and an id of it
Traces = list[StepTrace | None]


class Drawable:
    """The rows of one collection that may be drawn: listed once, and then read by their ids.

    What others write meanwhile is seen after :meth:`forget`.
    """

    def __init__(self, milvus: Milvus, settings: BufferSettings) -> None:
        self.settings = settings
        self._milvus = milvus
        self.forget()

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_rows": None, "_allowed": None}

    def forget(self) -> None:
        """List the rows anew at the next drawing."""
        self._rows: Table | None = None
        self._allowed: tuple[Conditions, np.ndarray] | None = None  # of the last query

    def allowed(self, query: HistoryQuery) -> np.ndarray:
        """The ids of the rows that a query may be answered by, sorted. Raises ``RetrievalError`` if Milvus does not answer."""
        rows, conditions = self._listed(), conditions_of(self.settings.filter, query)
        if self._allowed is None or self._allowed[0] != conditions:
            mask = mask_of(conditions, rows)
            if self.settings.selection == "best_reward":
                positive = rows.numbers("reward") > 0
                mask = positive if mask is None else mask & positive
            ids = np.array(rows.ids, dtype=object)
            self._allowed = conditions, ids if mask is None else ids[mask]
        return self._allowed[1]

    def _listed(self) -> Table:
        """Return the columns that filters read, of every row, in the order of the ids."""
        if self._rows is None:
            columns = [field for field in FIELDS if field.name in ("id", "source", "question", "reward")]
            pages = self._milvus.pages(self.settings.collection, [field.name for field in columns])
            rows = sorted((row for page in pages for row in page), key=lambda row: row["id"])
            self._rows = Table(columns, 0)
            self._rows.put(rows, np.empty((len(rows), 0), dtype=np.float32))
        return self._rows

    def read(self, ids: Sequence[str]) -> dict[str, StepTrace]:
        """The step traces of ids, without those that were deleted meanwhile."""
        return {row["id"]: trace_of(row) for row in self._milvus.get(self.settings.collection, ids, NAMES)}


def random_traces(layers: Sequence[Drawable], queries: Sequence[HistoryQuery], rngs: Sequence[random.Random]) -> Traces:
    """One step trace per query, drawn with its generator from all layers' as one; None where none is allowed.

    What a generator draws depends on it, on the query and on what the layers hold, not on the other generators: where a drawn
    row is gone by the time it is read, all are drawn again, from what is there then.

    Raises:
        RetrievalError: Milvus does not answer, or rows vanish as fast as they are drawn.
    """
    states = [rng.getstate() for rng in rngs]
    for _ in range(TRIES):
        if (found := _drawn(layers, queries, rngs)) is not None:
            return found
        for layer in layers:
            layer.forget()
        for rng, state in zip(rngs, states, strict=True):
            rng.setstate(state)
    raise RetrievalError(f"step traces are deleted as fast as they are drawn: {TRIES} times one was gone before it was read")


def _drawn(layers: Sequence[Drawable], queries: Sequence[HistoryQuery], rngs: Sequence[random.Random]) -> Traces | None:
    """Draw for each query, anew where answers are hidden; read all at once: a server makes a reader wait. None: one is gone."""
    found: Traces = [None] * len(queries)
    hidden: list[set[Place]] = [set() for _ in queries]
    waiting: Iterable[int] = range(len(queries))
    while drawn := {at: place for at in waiting if (place := _place(layers, queries[at], rngs[at], hidden[at]))}:
        chosen = sorted(set(drawn.values()))
        read = [layer.read([id for of, id in chosen if of == number]) for number, layer in enumerate(layers)]
        for at, (of, id) in drawn.items():
            if id not in read[of]:
                return None
            if layers[of].settings.filter.hide_answers and shows_answer(read[of][id].text, queries[at].answers):
                hidden[at].add((of, id))
            else:
                found[at] = read[of][id]
        waiting = [at for at in drawn if found[at] is None]
    return found


def _place(layers: Sequence[Drawable], query: HistoryQuery, rng: random.Random, hidden: set[Place]) -> Place | None:
    """Draw one of the places that are not hidden."""
    sets = [layer.allowed(query) for layer in layers]
    ends = list(accumulate(map(len, sets)))
    while len(hidden) < ends[-1]:
        layer = bisect(ends, at := rng.randrange(ends[-1]))
        if (place := (layer, str(sets[layer][at - ends[layer]]))) not in hidden:  # counted from the layer's end
            return place
    return None
