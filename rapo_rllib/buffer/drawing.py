"""Draw step traces at random, for retrieval noise: uniformly among the traces that a search could return for a query.

    random_traces: Drawable.allowed(query) of each layer --one number per generator--> Drawable.read

As in a search, ``settings.filter`` applies, and traces with a reward of 0 or less are left out if ``best_reward`` selects.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from rapo_rllib.buffer.rows import NAMES, trace_of
from rapo_rllib.buffer.shown_answers import shows_answer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.handle import Milvus
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, StepTrace

Place = tuple[int, str]  # the number of a layer, and the id of a step trace in it


class Drawable:
    """The rows of one collection that may be drawn: listed once, and then read by their ids.

    Rows that other processes write later are seen only after :meth:`forget`.
    """

    def __init__(self, milvus: Milvus, settings: BufferSettings) -> None:
        self.settings = settings
        self._milvus = milvus
        self.forget()

    def forget(self) -> None:
        """Forget the list of rows; the next drawing lists them anew."""
        self._rows: np.ndarray | None = None  # [2, N]: sorted ids, and their questions
        self._allowed: tuple[str, np.ndarray] | None = None  # the last question, and its ids

    def allowed(self, query: HistoryQuery) -> np.ndarray:
        """List the ids of rows that may answer a query, sorted. Raises ``RetrievalError`` if Milvus does not answer."""
        ids, questions = self._listed()
        if (wanted := self.settings.filter.question) == "any":
            return ids
        if self._allowed is None or self._allowed[0] != query.question:
            self._allowed = query.question, ids[(questions == query.question) == (wanted == "same")]
        return self._allowed[1]

    def _listed(self) -> np.ndarray:
        if self._rows is None:
            pages = self._milvus.pages(self.settings.collection, ["id", "question", "reward"])
            best = self.settings.selection == "best_reward"
            rows = sorted((row["id"], row["question"]) for page in pages for row in page if row["reward"] > 0 or not best)
            self._rows = np.array(rows, dtype=object).reshape(-1, 2).T
        return self._rows

    def read(self, ids: Sequence[str]) -> dict[str, StepTrace]:
        """Read the step traces with these ids, by id; traces that were deleted meanwhile are left out."""
        return {row["id"]: trace_of(row) for row in self._milvus.get(self.settings.collection, ids, NAMES)}


def random_traces(
    layers: Sequence[Drawable], queries: Sequence[HistoryQuery], rngs: Sequence[random.Random]
) -> list[StepTrace | None]:
    """Draw one step trace per query, with the query's generator, from all layers together; None if no trace is allowed.

    A draw depends on its generator, its query and the rows of the layers, not on the other generators. The rows of all queries
    are read together, since a server makes each reader wait. If a row was deleted since it was listed, or shows an answer that
    is to be hidden, another one is drawn.

    Raises:
        RetrievalError: Milvus does not answer, or lists a row that it does not have.
    """
    found: list[StepTrace | None] = [None] * len(queries)
    hidden: list[set[Place]] = [set() for _ in queries]
    deleted: set[Place] = set()
    waiting: Iterable[int] = range(len(queries))
    while drawn := {at: place for at in waiting if (place := _place(layers, queries[at], rngs[at], hidden[at]))}:
        chosen = sorted(set(drawn.values()))
        read = [layer.read([id for of, id in chosen if of == number]) for number, layer in enumerate(layers)]
        missing = {(of, id) for of, id in chosen if id not in read[of]}
        if missing & deleted:
            raise RetrievalError(f"Milvus lists step traces that it does not have: {sorted(missing & deleted)[:3]}")
        deleted |= missing
        for of in {of for of, _ in missing}:
            layers[of].forget()
        for at, (of, id) in drawn.items():
            if (of, id) in missing:
                continue
            if layers[of].settings.filter.hide_answers and shows_answer(read[of][id].text, queries[at].answers):
                hidden[at].add((of, id))
            else:
                found[at] = read[of][id]
        waiting = [at for at in drawn if found[at] is None]
    return found


def _place(layers: Sequence[Drawable], query: HistoryQuery, rng: random.Random, hidden: set[Place]) -> Place | None:
    """Draw a place that is not hidden; None if there is none."""
    sets = [layer.allowed(query) for layer in layers]
    ends = list(accumulate(map(len, sets)))
    while len(hidden) < ends[-1]:
        layer = bisect(ends, at := rng.randrange(ends[-1]))
        if (place := (layer, str(sets[layer][at - ends[layer]]))) not in hidden:  # counted from the layer's end
            return place
    return None
