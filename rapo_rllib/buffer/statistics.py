"""Describe a buffer in numbers. Flow: ``rllib buffer stats`` -> here -> tables or JSON.

Rows are read once, a page at a time; a sample of keys and of questions is then searched for its nearest neighbours.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rapo_rllib.buffer.leak_guard import LeakGuard, digest_of
from rapo_rllib.buffer.maker import MADE_BY, MAKER
from rapo_rllib.buffer.store import StepTraceBuffer

if TYPE_CHECKING:
    import numpy as np

SAMPLE = 1024  # keys, and as many questions, whose nearest key is looked for
ASKED = 64  # keys of one search
Item = TypeVar("Item")


@dataclass
class BufferStats:
    """Everything that ``stats`` shows."""

    where: str
    embedder: str
    traces: int = 0
    trajectories: int = 0  # those that begin alike count as one
    questions: int = 0  # different ones, by normalised text
    by_source: dict[str, int] = field(default_factory=dict)  # step traces
    mean_reward_by_source: dict[str, float] = field(default_factory=dict)
    near_threshold: float = 0.0
    near_sample: int = 0  # keys whose nearest other key was looked for
    near_duplicates: int = 0  # of them have another key at the threshold or above
    asked: int = 0  # different training questions that were given
    covered: int = 0  # of them have a step trace of their own, by normalised text
    spreads: dict[str, dict[str, float]] = field(default_factory=dict)  # mean and quantiles, by what they are of


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


def statistics(
    buffer: StepTraceBuffer,
    questions: Collection[str] = (),
    near_threshold: float = 0.98,
    on_progress: Callable[[int, int], None] | None = None,
) -> BufferStats:
    """Describe a buffer.

    Args:
        buffer: which.
        questions: the training questions' texts, for the coverage; none: it is left out.
        near_threshold: cosine from which on two keys are near-duplicates.
        on_progress: told how many of how many rows were read.

    Raises:
        ValueError: there is no such buffer, or ``questions`` are given and it was made with another embedder.
        RetrievalError: Milvus does not answer.
    """
    if questions:
        buffer.check_embedder()
    stats = BufferStats(f"{buffer.uri} ({buffer.collection})", (buffer.note(MADE_BY, MAKER) or {}).get("name", "unknown"))
    sample = KeySample[str]()
    digests = _count(buffer, stats, sample, on_progress)
    if not stats.traces:
        raise ValueError(f"{stats.where} is empty: there is nothing to describe")
    nearest = _nearest(buffer, sample.vectors, sample.items)
    stats.spreads["cosine to the nearest other key"] = spread(nearest)
    stats.near_threshold, stats.near_sample = near_threshold, len(nearest)
    stats.near_duplicates = sum(similarity >= near_threshold for similarity in nearest)
    if questions:
        guard, different = LeakGuard(questions), sorted(set(questions))
        stats.asked, stats.covered = len(guard), len(guard.digests & digests)
        some = random.Random(0).sample(different, min(len(different), SAMPLE))
        vectors = buffer.embedder.encode([(question, "") for question in some])
        nearest = _nearest(buffer, list(vectors), [""] * len(some))
        stats.spreads["cosine of a training question to the nearest key"] = spread(nearest)
    return stats


def _count(
    buffer: StepTraceBuffer, stats: BufferStats, sample: KeySample[str], on_progress: Callable[[int, int], None] | None
) -> set[bytes]:
    """Read all rows into ``stats`` and ``sample``; returns the digests of their questions."""
    total, digests = buffer.count(), set[bytes]()
    texts, histories, rewards = array("L"), array("L"), array("d")
    for traces, vectors in buffer.pages_with_keys():
        for trace in traces:
            known, mean = stats.by_source.get(trace.source, 0), stats.mean_reward_by_source.get(trace.source, 0.0)
            stats.by_source[trace.source] = known + 1
            stats.mean_reward_by_source[trace.source] = mean + (trace.reward - mean) / (known + 1)
            stats.trajectories += trace.step_index == 0
            digests.add(digest_of(trace.question))
            texts.append(len(trace.text))
            histories.append(len(trace.history))
            rewards.append(trace.reward)
        sample.offer([trace.id for trace in traces], vectors)
        stats.traces += len(traces)
        if on_progress:
            on_progress(stats.traces, max(total, stats.traces))
    stats.questions = len(digests)
    if stats.traces:
        stats.spreads = {"characters of a step": spread(texts), "characters of its history": spread(histories)}
        stats.spreads["reward"] = spread(rewards)
    return digests


def _nearest(buffer: StepTraceBuffer, vectors: Sequence[np.ndarray], own: Sequence[str]) -> list[float]:
    """Cosine of each of ``vectors [N, D]`` to the nearest key that is not of the step trace ``own``; -1: there is none."""
    import numpy as np

    found = []
    for start in range(0, len(vectors), ASKED):
        asked = np.stack(vectors[start : start + ASKED])
        hits = buffer.milvus.search(buffer.collection, asked, 2, ["id"], "exact")
        for rows, id in zip(hits, own[start : start + ASKED], strict=True):
            found.append(max((min(row["similarity"], 1.0) for row in rows if row["id"] != id), default=-1.0))
    return found


def spread(values: Any) -> dict[str, float]:
    """Mean and quantiles of numbers, ``[N]``."""
    import numpy as np

    names = ("min", "10 %", "median", "90 %", "max")
    found = np.quantile(np.asarray(values, dtype=np.float64), (0, 0.1, 0.5, 0.9, 1))
    return {"mean": float(np.mean(values)), **dict(zip(names, found.tolist(), strict=True))}
