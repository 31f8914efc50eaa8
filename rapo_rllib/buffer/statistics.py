"""Describe a buffer in numbers, and find evaluation questions in it. Flow: ``rllib buffer stats`` -> here -> lines or JSON."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from rapo_rllib.buffer.leak_guard import LeakGuard, digest_of
from rapo_rllib.buffer.maker import MADE_BY
from rapo_rllib.buffer.store import StepTraceBuffer


@dataclass
class BufferStats:
    """The figures that ``rllib buffer stats`` shows."""

    where: str
    embedder: str
    traces: int = 0
    trajectories: int = 0  # those that begin alike count as one
    questions: int = 0  # different ones, by normalised text
    by_source: dict[str, int] = field(default_factory=dict)  # step traces
    mean_reward_by_source: dict[str, float] = field(default_factory=dict)
    asked: int = 0  # different training questions that were given
    covered: int = 0  # how many of these have a step trace of their own, by normalised text
    leaks: dict[str, int] = field(default_factory=dict)  # evaluation questions in the buffer, each with its count of traces
    missing: int = 0  # step traces that the buffer's files have lost


def statistics(buffer: StepTraceBuffer, questions: Collection[str] = (), guard: LeakGuard | None = None) -> BufferStats:
    """Compute the figures of a buffer, which is read once.

    Args:
        buffer: the buffer to describe.
        questions: texts of the training questions, for the coverage; without them the coverage is left out.
        guard: the evaluation questions.

    Raises:
        ValueError: there is no such buffer, or it is empty.
        RetrievalError: Milvus does not answer.
    """
    made_by = buffer.note(MADE_BY) or {}
    stats = BufferStats(f"{buffer.uri} ({buffer.collection})", made_by.get("name", "unknown"))
    digests = set[bytes]()
    for trace in buffer.all_traces():
        stats.traces += 1
        known, mean = stats.by_source.get(trace.source, 0), stats.mean_reward_by_source.get(trace.source, 0.0)
        stats.by_source[trace.source] = known + 1
        stats.mean_reward_by_source[trace.source] = mean + (trace.reward - mean) / (known + 1)
        stats.trajectories += trace.step_index == 0
        digests.add(digest_of(trace.question))
        if guard is not None and guard.leaks(trace.question):
            stats.leaks[trace.question] = stats.leaks.get(trace.question, 0) + 1
    if not stats.traces:
        raise ValueError(f"{stats.where} is empty: there is nothing to describe")
    known_questions = LeakGuard(questions)
    stats.questions, stats.missing = len(digests), buffer.missing()
    stats.asked, stats.covered = len(known_questions), len(known_questions.digests & digests)
    return stats
