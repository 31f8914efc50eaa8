"""Describe a buffer in numbers, and say what should not be in it. Flow: ``rllib buffer stats`` -> here -> lines or JSON."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from rapo_rllib.buffer.importing import unfinished_imports
from rapo_rllib.buffer.leak_guard import LeakGuard, digest_of
from rapo_rllib.buffer.maker import MADE_BY, MAKER
from rapo_rllib.buffer.store import StepTraceBuffer


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
    unfinished: list[str] = field(default_factory=list)  # files of each import that was not finished
    spreads: dict[str, dict[str, float]] = field(default_factory=dict)  # mean and quantiles, by what they are of


def statistics(buffer: StepTraceBuffer, questions: Collection[str] = (), guard: LeakGuard | None = None) -> BufferStats:
    """Describe a buffer; it is read once.

    Args:
        buffer: which.
        questions: the training questions' texts, for the coverage; none: it is left out.
        guard: knows the evaluation questions.

    Raises:
        ValueError: there is no such buffer, or it is empty.
        RetrievalError: Milvus does not answer.
    """
    made_by = buffer.note(MADE_BY, MAKER) or {}
    stats = BufferStats(f"{buffer.uri} ({buffer.collection})", made_by.get("name", "unknown"))
    digests = set[bytes]()
    texts, histories, rewards = array("L"), array("L"), array("d")
    for trace in buffer.all_traces():
        stats.traces += 1
        known, mean = stats.by_source.get(trace.source, 0), stats.mean_reward_by_source.get(trace.source, 0.0)
        stats.by_source[trace.source] = known + 1
        stats.mean_reward_by_source[trace.source] = mean + (trace.reward - mean) / (known + 1)
        stats.trajectories += trace.step_index == 0
        digests.add(digest_of(trace.question))
        if guard is not None and guard.leaks(trace.question):
            stats.leaks[trace.question] = stats.leaks.get(trace.question, 0) + 1
        texts.append(len(trace.text))
        histories.append(len(trace.history))
        rewards.append(trace.reward)
    if not stats.traces:
        raise ValueError(f"{stats.where} is empty: there is nothing to describe")
    known_questions = LeakGuard(questions)
    stats.questions, stats.missing, stats.unfinished = len(digests), buffer.missing(), unfinished_imports(buffer)
    stats.asked, stats.covered = len(known_questions), len(known_questions.digests & digests)
    lengths = {"characters of a step": spread(texts), "characters of its history": spread(histories)}
    stats.spreads = {**lengths, "reward": spread(rewards)}
    return stats


def spread(values: Any) -> dict[str, float]:
    """Mean and quantiles of numbers, ``[N]``."""
    import numpy as np

    names = ("min", "10 %", "median", "90 %", "max")
    found = np.quantile(np.asarray(values, dtype=np.float64), (0, 0.1, 0.5, 0.9, 1))
    return {"mean": float(np.mean(values)), **dict(zip(names, found.tolist(), strict=True))}
