"""Check what a user may choose about a Step-Trace Buffer, and make the choice among the nearest step traces of one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rapo_rllib.buffer.usage import NEVER, TraceUsage
from rapo_rllib.types import RetrievedTrace

URI_KEY, EMBEDDER_KEY = "step_trace_buffer.uri", "step_trace_buffer.embedder"  # what the user calls them, for messages


def ranking_score(similarity: float, source_weight: float, usage: TraceUsage, usage_weight: float) -> float:
    """Score that orders the candidates of one query, where sources have weights or usage counts.

        score = w_source · similarity + u · uses · mean retrieval reward / (uses + 4)

    Args:
        similarity: cosine of the candidate's key and the query.
        source_weight: w_source, of the agent that wrote it.
        usage: how often it was shown, and how it fared (nats).
        usage_weight: u, ``step_trace_buffer.usage_weight``.
    """
    return source_weight * similarity + usage_weight * usage.shrunk_reward


def ranked(
    hits: Sequence[RetrievedTrace],
    source_weights: Mapping[str, float],
    usage: Mapping[str, TraceUsage],
    usage_weight: float,
) -> list[RetrievedTrace]:
    """The candidates of one query by their ranking score, best first."""
    if not source_weights and not usage_weight:
        return list(hits)

    def score(hit: RetrievedTrace) -> float:
        weight = source_weights.get(hit.trace.source, 1.0)
        return ranking_score(hit.similarity, weight, usage.get(hit.trace.id, NEVER), usage_weight)

    return sorted(hits, key=score, reverse=True)


def select(hits: Sequence[RetrievedTrace], selection: str = "nearest") -> RetrievedTrace | None:
    """Choose among the ``top_k`` of one query (given nearest first): the nearest, or the one with the highest reward.

    ``best_reward`` is the released code's rule (algorithm.md section 9). None without a positive one; of equals the nearest.
    """
    if not hits:
        return None
    if selection == "nearest":
        return hits[0]
    best = max(hits, key=lambda hit: hit.trace.reward)
    return best if best.trace.reward > 0 else None
