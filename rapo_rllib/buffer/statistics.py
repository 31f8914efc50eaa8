"""The numbers that describe a buffer. Flow: ``rllib buffer stats`` -> here -> tables or JSON.

Rows are read twice, a page at a time: once to count, once to compare every key with those of a sample (``neighbours.py``).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rapo_rllib.buffer.leak_guard import digest_of
from rapo_rllib.buffer.maker import MADE_BY, MAKER
from rapo_rllib.buffer.neighbours import KeySample, nearest_others
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.types import StepTrace

QUESTION_SAMPLE = 256  # training questions whose nearest key is looked for
QUANTILES = {"min": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "max": 1.0}
LOOK_UP = 256  # step traces by use that are read together
BINS = 20
SIMILARITY_RANGE = (0.0, 1.0)


@dataclass
class Spread:
    """Mean and quantiles of some numbers, and their histogram."""

    mean: float
    quantiles: dict[str, float]
    edges: list[float]  # [bins + 1]
    counts: list[int]  # [bins]


@dataclass
class Coverage:
    """The share of the training questions that the buffer knows."""

    questions: int  # different ones
    covered: int  # of them have a step trace of their own, by normalised text
    sampled: int
    similarity: Spread | None  # of a sample of the questions to the nearest key


@dataclass
class UsedTrace:
    """A step trace that was shown in training, and how it fared."""

    id: str
    uses: int
    mean_reward: float  # of the retrieval rewards, nats
    source: str
    text: str


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
    near_sample: int = 0  # keys that were compared with all others
    near_duplicates: int = 0  # of them have another key at the threshold or above
    near_similarity: Spread | None = None
    coverage: Coverage | None = None
    used: int = 0  # step traces that were shown at least once
    best: list[UsedTrace] = field(default_factory=list)
    worst: list[UsedTrace] = field(default_factory=list)


def statistics(
    buffer: StepTraceBuffer,
    questions: Collection[str] = (),
    near_threshold: float = 0.98,
    ranked: int = 5,
    on_progress: Callable[[int, int], None] | None = None,
) -> BufferStats:
    """Describe a buffer.

    Args:
        buffer: which.
        questions: the training questions' texts, for the coverage; none: it is left out.
        near_threshold: cosine from which on two keys are near-duplicates.
        ranked: how many of the best and the worst step traces by use.
        on_progress: told how many of how many rows were read.

    Raises:
        ValueError: there is no such buffer, or ``questions`` are given and it was made with another embedder.
        RetrievalError: Milvus does not answer.
    """
    if questions:
        buffer.check_embedder()
    total, done = buffer.count(), 0
    stats = BufferStats(f"{buffer.uri} ({buffer.collection})", buffer.note(MADE_BY, MAKER) or {})
    count, sample = _Count(), KeySample[str]()

    def tell(rows: int) -> None:
        nonlocal done
        done += rows
        if on_progress:
            on_progress(done, max(2 * total, done))

    for traces, vectors in buffer.reader.with_keys():
        count.add(traces)
        sample.offer([trace.id for trace in traces], vectors)
        tell(len(traces))
    if not count.traces:
        raise ValueError(f"{stats.where} is empty: there is nothing to describe")
    count.fill(stats)
    asked = _sampled(list(dict.fromkeys(questions)))
    similarities, to_questions = nearest_others(buffer, sample, asked, tell)
    stats.near_threshold, stats.near_sample = near_threshold, len(similarities)
    stats.near_duplicates = int((similarities >= near_threshold).sum())
    stats.near_similarity = spread(similarities, SIMILARITY_RANGE)
    if questions:
        known = {digest_of(question) for question in questions}
        stats.coverage = Coverage(len(known), len(known & count.digests), len(asked), spread(to_questions, SIMILARITY_RANGE))
    _fill_usage(buffer, stats, ranked)
    return stats


def spread(values: Any, bounds: tuple[float, float] | None = None) -> Spread | None:
    """Mean, quantiles and histogram of numbers, ``[N]``; None for none. ``bounds`` of the histogram: those of the numbers."""
    import numpy as np

    numbers = np.asarray(values, dtype=np.float64)
    if not numbers.size:
        return None
    counts, edges = np.histogram(numbers if bounds is None else np.clip(numbers, *bounds), bins=BINS, range=bounds)
    quantiles = {name: float(np.quantile(numbers, q)) for name, q in QUANTILES.items()}
    return Spread(float(numbers.mean()), quantiles, edges.tolist(), counts.tolist())


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


def _sampled(questions: list[str]) -> list[str]:
    """Up to 256 of them, evenly spaced."""
    step = max(len(questions) / QUESTION_SAMPLE, 1.0)
    return [questions[int(i * step)] for i in range(min(len(questions), QUESTION_SAMPLE))]


def _fill_usage(buffer: StepTraceBuffer, stats: BufferStats, ranked: int) -> None:
    usage = {trace_id: each for trace_id, each in buffer.usage.all().items() if each.uses > 0}
    stats.used = len(usage)
    order = sorted(usage, key=lambda trace_id: (usage[trace_id].shrunk_reward, trace_id))
    for ids, into in ((order[::-1], stats.best), (order, stats.worst)):
        for trace in islice(_present(buffer, ids), ranked):
            each = usage[trace.id]
            into.append(UsedTrace(trace.id, each.uses, each.mean_reward, trace.source, trace.text))


def _present(buffer: StepTraceBuffer, ids: Sequence[str]) -> Iterator[StepTrace]:
    """The step traces with these ids, in their order; some have left the buffer since they were shown."""
    for start in range(0, len(ids), LOOK_UP):
        some = ids[start : start + LOOK_UP]
        traces = {trace.id: trace for trace in buffer.reader.of(some)}
        yield from (traces[trace_id] for trace_id in some if trace_id in traces)
