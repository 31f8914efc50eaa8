"""Describe a buffer in numbers, and say what should not be in it. Flow: ``rllib buffer stats`` -> here -> lines or JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from rapo_rllib.buffer.leak_guard import LeakGuard, digest_of
from rapo_rllib.buffer.maker import MADE_BY
from rapo_rllib.buffer.store import StepTraceBuffer

TELL_EVERY = 1000  # step traces


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
    asked: int = 0  # different training questions that were given
    covered: int = 0  # of them have a step trace of their own, by normalised text
    leaks: dict[str, int] = field(default_factory=dict)  # evaluation questions that it holds, each with its step traces
    missing: int = 0  # step traces that its files have lost


def statistics(
    buffer: StepTraceBuffer,
    questions: Collection[str] = (),
    guard: LeakGuard | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> BufferStats:
    """Describe a buffer; it is read once.

    Args:
        buffer: which.
        questions: the training questions' texts, for the coverage; none: it is left out.
        guard: knows the evaluation questions.
        on_progress: told how many of how many step traces were read.

    Raises:
        ValueError: there is no such buffer, or it is empty.
        RetrievalError: Milvus does not answer.
    """
    made_by = buffer.note(MADE_BY) or {}
    stats = BufferStats(f"{buffer.uri} ({buffer.collection})", made_by.get("name", "unknown"))
    total, digests = buffer.count(), set[bytes]()
    for trace in buffer.all_traces():
        stats.traces += 1
        known, mean = stats.by_source.get(trace.source, 0), stats.mean_reward_by_source.get(trace.source, 0.0)
        stats.by_source[trace.source] = known + 1
        stats.mean_reward_by_source[trace.source] = mean + (trace.reward - mean) / (known + 1)
        stats.trajectories += trace.step_index == 0
        digests.add(digest_of(trace.question))
        if guard is not None and guard.leaks(trace.question):
            stats.leaks[trace.question] = stats.leaks.get(trace.question, 0) + 1
        if on_progress and (stats.traces % TELL_EVERY == 0 or stats.traces >= total):
            on_progress(stats.traces, max(total, stats.traces))
    if not stats.traces:
        raise ValueError(f"{stats.where} is empty: there is nothing to describe")
    known_questions = LeakGuard(questions)
    stats.questions, stats.missing = len(digests), buffer.missing()
    stats.asked, stats.covered = len(known_questions), len(known_questions.digests & digests)
    return stats
