"""Describe a buffer in numbers. Flow: ``rllib buffer stats`` -> here -> tables or JSON.

Rows are read once, a page at a time; a sample of keys and of questions is then searched for its nearest neighbours.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rapo_rllib.buffer.leak_guard import LeakGuard, digest_of
from rapo_rllib.buffer.maker import MADE_BY, MAKER
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.types import StepTrace

if TYPE_CHECKING:
    import numpy as np

SAMPLE = 1024  # keys, and as many questions, whose nearest key is looked for
ASKED = 64  # keys of one search
QUANTILES = {"min": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "max": 1.0}
Item = TypeVar("Item")


@dataclass
class Spread:
    """Mean and quantiles of some numbers."""

    mean: float
    quantiles: dict[str, float]


@dataclass
class BufferStats:
    """Everything that ``stats`` shows."""

    where: str
    facts: dict[str, Any]
    traces: int = 0
    trajectories: int = 0
    questions: int = 0  # different ones, by normalised text
    by_source: dict[str, int] = field(default_factory=dict)
    mean_reward_by_source: dict[str, float] = field(default_factory=dict)
    steps_per_trajectory: dict[int, int] = field(default_factory=dict)
    text_length: Spread | None = None  # characters
    history_length: Spread | None = None
    reward: Spread | None = None
    near_threshold: float = 0.0
    near_sample: int = 0  # keys whose nearest other key was looked for
    near_duplicates: int = 0  # of them have another key at the threshold or above
    near_similarity: Spread | None = None
    asked: int = 0  # different training questions that were given
    covered: int = 0  # of them have a step trace of their own, by normalised text
    asked_similarity: Spread | None = None  # of a sample of them to the nearest key


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
    total = buffer.count()
    stats = BufferStats(f"{buffer.uri} ({buffer.collection})", buffer.note(MADE_BY, MAKER) or {})
    count, sample = _Count(), KeySample[str]()
    for traces, vectors in buffer.pages_with_keys():
        count.add(traces)
        sample.offer([trace.id for trace in traces], vectors)
        if on_progress:
            on_progress(count.traces, max(total, count.traces))
    if not count.traces:
        raise ValueError(f"{stats.where} is empty: there is nothing to describe")
    count.fill(stats)
    similarities = _nearest(buffer, sample.vectors, sample.items)
    stats.near_threshold, stats.near_sample = near_threshold, len(similarities)
    stats.near_duplicates = sum(similarity >= near_threshold for similarity in similarities)
    stats.near_similarity = spread(similarities)
    if questions:
        known = LeakGuard(questions)
        stats.asked, stats.covered = len(known), len(known.digests & count.digests)
        some = random.Random(0).sample(sorted(set(questions)), min(len(set(questions)), SAMPLE))
        vectors = buffer.embedder.encode([(question, "") for question in some])
        stats.asked_similarity = spread(_nearest(buffer, list(vectors), [""] * len(some)))
    return stats


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


def spread(values: Any) -> Spread | None:
    """Mean and quantiles of numbers, ``[N]``; None for none."""
    import numpy as np

    numbers = np.asarray(values, dtype=np.float64)
    if not numbers.size:
        return None
    return Spread(float(numbers.mean()), {name: float(np.quantile(numbers, q)) for name, q in QUANTILES.items()})


class _Count:
    """Sums of one pass over the rows: counters, and a few bytes a row."""

    def __init__(self) -> None:
        self.traces = 0
        self.sources: Counter[str] = Counter()
        self.rewards: dict[str, float] = {}  # sums by source
        self.steps: Counter[int] = Counter()
        self.digests: set[bytes] = set()
        self.text_lengths, self.history_lengths, self.reward_values = array("L"), array("L"), array("d")

    def add(self, traces: Iterable[StepTrace]) -> None:
        for trace in traces:
            self.traces += 1
            self.sources[trace.source] += 1
            self.rewards[trace.source] = self.rewards.get(trace.source, 0.0) + trace.reward
            self.steps[trace.step_index] += 1
            self.digests.add(digest_of(trace.question))
            self.text_lengths.append(len(trace.text))
            self.history_lengths.append(len(trace.history))
            self.reward_values.append(trace.reward)

    def fill(self, stats: BufferStats) -> None:
        stats.traces, stats.questions = self.traces, len(self.digests)
        stats.by_source = dict(self.sources.most_common())
        stats.mean_reward_by_source = {name: self.rewards[name] / count for name, count in stats.by_source.items()}
        stats.steps_per_trajectory = trajectory_lengths(self.steps)
        stats.trajectories = sum(stats.steps_per_trajectory.values())
        stats.text_length, stats.history_length = spread(self.text_lengths), spread(self.history_lengths)
        stats.reward = spread(self.reward_values)


def trajectory_lengths(by_index: Mapping[int, int]) -> dict[int, int]:
    """Count trajectories by their number of steps, from how many step traces stand at which place.

    A trajectory of ``n`` steps has one step trace at each place below ``n``. Trajectories that begin alike share their first
    step traces, and count as one as far as they do.

    Example: 3 at place 0, 3 at place 1 and 1 at place 2: two trajectories of 2 steps, one of 3.
    """
    last = max(by_index, default=-1)
    lengths = {n: by_index.get(n - 1, 0) - by_index.get(n, 0) for n in range(1, last + 2)}
    return {n: count for n, count in lengths.items() if count > 0}
