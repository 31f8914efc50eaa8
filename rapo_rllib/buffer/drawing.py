"""Step traces drawn at random, uniformly of those that a query may be answered by: what retrieval noise shows.

    random_traces: Drawable.numbers(query) of each layer --one number per generator--> Drawable.traces

The set is a search's: ``settings.filter``, no reward of 0 or less where ``best_reward`` selects.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import numpy as np

from rapo_rllib.buffer.filters import conditions_of
from rapo_rllib.buffer.parts import PartRows
from rapo_rllib.buffer.rows import NAMES, trace_of
from rapo_rllib.buffer.shown_answers import shows_answer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.expressions import mask_of
from rapo_rllib.milvus.handle import Milvus
from rapo_rllib.milvus.notes import Version
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, StepTrace

CHECK_S = 5.0  # how old the list of rows may be
TRIES = 5  # drawings of one batch; after each, the rows are listed anew
FACTS = ("id", "source", "reward", "weight_version")  # what filters ask about, beside the question


class ListedRows:
    """The columns that filters ask about, of all rows as they were listed."""

    def __init__(self, rows: Sequence[dict], version: str) -> None:
        self.version = version
        self._columns = {name: _column([row[name] for row in rows]) for name in (rows[0] if rows else ())}
        self._codes: dict[str, tuple[np.ndarray, dict[str, int]]] = {}

    def numbers(self, name: str) -> np.ndarray:
        """A column ``[N]``."""
        return self._columns.get(name, np.empty(0))

    def codes(self, name: str) -> tuple[np.ndarray, dict[str, int]]:
        """A column of texts as one number per different text, ``[N]``, and the number of each text."""
        if name not in self._codes:
            texts, codes = np.unique(self.numbers(name), return_inverse=True)
            self._codes[name] = codes, {str(text): code for code, text in enumerate(texts)}
        return self._codes[name]


class Drawable:
    """The rows of one collection that may be drawn: listed by Milvus, and then read by their ids."""

    def __init__(self, milvus: Milvus, settings: BufferSettings, version: Version, parts: PartRows) -> None:
        self._milvus, self._settings, self._collection = milvus, settings, settings.collection
        self._version, self._parts = version, parts
        self.forget()

    def __getstate__(self) -> dict:
        return {name: getattr(self, name) for name in ("_milvus", "_settings", "_collection", "_version", "_parts")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.forget()

    @property
    def hides_answers(self) -> bool:
        """Whether a trace that shows the answer to a query is none of its."""
        return self._settings.filter.hide_answers

    def forget(self) -> None:
        """See at the next drawing what is there then."""
        self._rows: ListedRows | None = None
        self._next_check = 0.0
        self._ids = self._order = np.empty(0, dtype=np.int64)

    def numbers(self, queries: Sequence[HistoryQuery]) -> list[np.ndarray]:
        """For each query the numbers of the rows it may be answered by, in the order of their ids.

        Raises:
            RetrievalError: Milvus does not answer.
        """
        rows = self._listed()
        masks = [mask_of(conditions_of(self._settings.filter, query), rows) for query in queries]
        order = self._order
        if self._settings.selection == "best_reward":
            order = order[rows.numbers("reward")[order] > 0]
        return [order if mask is None else order[mask[order]] for mask in masks]

    def traces(self, numbers: Sequence[int]) -> dict[int, StepTrace]:
        """The step traces of these rows; one that was deleted meanwhile is missing."""
        if not numbers or self._rows is None:
            return {}
        rows = self._milvus.get(self._collection, sorted({str(self._ids[number]) for number in numbers}), NAMES)
        found = {row["id"]: trace_of(row) for row in self._parts.whole(rows)}
        return {number: found[self._ids[number]] for number in numbers if self._ids[number] in found}

    def _listed(self) -> ListedRows:
        """The rows, listed anew if they may have changed since."""
        known, now = self._rows, time.monotonic()
        if known is not None and now < self._next_check:
            return known
        version = self._version.get()
        self._next_check = now + CHECK_S
        if known is None or known.version != version:
            names = FACTS if self._settings.filter.question == "any" else (*FACTS, "question")
            rows = [row for page in self._milvus.pages(self._collection, names) for row in page]
            known = self._rows = ListedRows(rows, version)
            self._ids = known.numbers("id")
            self._order = np.argsort(self._ids, kind="stable")
        return known


def random_traces(
    layers: Sequence[Drawable], queries: Sequence[HistoryQuery], rngs: Sequence[random.Random]
) -> list[StepTrace | None]:
    """One step trace per query, drawn with its generator from all layers' as one; None where none is allowed.

    What a generator draws depends on it, on the query and on what the layers hold, not on the other generators: where a drawn
    row is gone by the time it is read, all are drawn again, from what is there then.

    Raises:
        RetrievalError: Milvus does not answer, or rows vanish as fast as they are drawn.
    """
    states = [rng.getstate() for rng in rngs]
    for _ in range(TRIES):
        sets = [list(allowed) for allowed in zip(*(layer.numbers(queries) for layer in layers), strict=True)]
        for rng, state in zip(rngs, states, strict=True):
            rng.setstate(state)
        drawn = _drawn(layers, queries, sets, rngs)
        if drawn is not None:
            return drawn
        for layer in layers:
            layer.forget()
    raise RetrievalError(f"step traces are deleted as fast as they are drawn: {TRIES} times one was gone before it was read")


def _drawn(
    layers: Sequence[Drawable],
    queries: Sequence[HistoryQuery],
    sets: Sequence[list[np.ndarray]],
    rngs: Sequence[random.Random],
) -> list[StepTrace | None] | None:
    """One trace per query out of its sets, a set per layer; None where a row is gone. What is hidden is drawn again."""
    drawn: list[StepTrace | None] = [None] * len(queries)
    waiting = list(range(len(queries)))
    while waiting:
        places = {at: place for at in waiting if (place := _one_of(sets[at], rngs[at])) is not None}
        read = [layer.traces([row for of, row in places.values() if of == index]) for index, layer in enumerate(layers)]
        if not all(row in read[layer] for layer, row in places.values()):
            return None
        waiting = []
        for at, (layer, row) in places.items():
            trace = read[layer][row]
            if layers[layer].hides_answers and shows_answer(trace.text, queries[at].answers):
                sets[at][layer] = sets[at][layer][sets[at][layer] != row]
                waiting.append(at)
            else:
                drawn[at] = trace
    return drawn


def _column(values: list) -> np.ndarray:
    return np.array(values, dtype=object if isinstance(values[0], str) else None)


def _one_of(allowed: Sequence[np.ndarray], rng: random.Random) -> tuple[int, int] | None:
    """``(layer, row number)``, uniformly over the rows of all layers; None if there are none."""
    total = sum(map(len, allowed))
    if not total:
        return None
    place = rng.randrange(total)
    for layer, numbers in enumerate(allowed):
        if place < len(numbers):
            return layer, int(numbers[place])
        place -= len(numbers)
    return None
