"""Check what a user may choose about a Step-Trace Buffer, and make the choice among the nearest step traces of one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rapo_rllib.buffer.filters import check_filter
from rapo_rllib.buffer.growth import GROWTHS
from rapo_rllib.buffer.keys import RECIPES
from rapo_rllib.buffer.usage import NEVER, TraceUsage
from rapo_rllib.embedding.local import POOLINGS
from rapo_rllib.milvus.connection import checked_uri
from rapo_rllib.milvus.index import INDEXES
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import RetrievedTrace

URI_KEY, EMBEDDER_KEY = "step_trace_buffer.uri", "step_trace_buffer.embedder"  # what the user calls them, for messages
SELECTIONS = ("nearest", "best_reward")
LEVELS = ("step", "trajectory")


def check_settings(settings: BufferSettings) -> None:
    """Refuse values that could only fail later. Raises ``ValueError`` naming the key."""
    checked_uri(settings.uri, URI_KEY)
    choices = {"selection": SELECTIONS, "pooling": POOLINGS, "key_recipe": tuple(RECIPES), "index": INDEXES, "level": LEVELS}
    if settings.growth not in GROWTHS:
        raise ValueError(f"buffer_growth must be one of {GROWTHS}, got {settings.growth!r}")
    for key, known in choices.items():
        if getattr(settings, key) not in known:
            raise ValueError(f"step_trace_buffer.{key} must be one of {known}, got {getattr(settings, key)!r}")
    if not isinstance(settings.fallback_text, str):
        raise ValueError(
            f"step_trace_buffer.fallback_text must be a text, got {settings.fallback_text!r}; leave it out for none"
        )
    if settings.top_k < 1:
        raise ValueError(f"step_trace_buffer.top_k must be at least 1, got {settings.top_k}")
    if settings.max_traces is not None and settings.max_traces < 1:
        raise ValueError(f"step_trace_buffer.max_traces must be at least 1, or null for all, got {settings.max_traces}")
    for key in ("timeout_s", "embedder_timeout_s"):
        if getattr(settings, key) <= 0:
            raise ValueError(f"step_trace_buffer.{key} must be positive, got {getattr(settings, key)}")
    check_filter(settings.filter)
    _check_ranking(settings)
    if not settings.collection.isidentifier():
        raise ValueError(f"step_trace_buffer.collection must be letters, digits and underscores, got {settings.collection!r}")


def _check_ranking(settings: BufferSettings) -> None:
    if settings.usage_weight < 0:
        raise ValueError(f"step_trace_buffer.usage_weight must be 0 or more, got {settings.usage_weight}")
    if settings.usage_weight > 0 and settings.top_k == 1:
        raise ValueError(
            f"step_trace_buffer.usage_weight = {settings.usage_weight} with top_k = 1: with one candidate there is nothing to "
            "rank; set top_k to 8, say"
        )
    if settings.max_grown < 1:
        raise ValueError(f"step_trace_buffer.max_grown must be at least 1, got {settings.max_grown}")
    if settings.grown_half_life <= 0:
        raise ValueError(f"step_trace_buffer.grown_half_life must be positive, got {settings.grown_half_life}")


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
    if selection not in SELECTIONS:
        raise ValueError(f"step_trace_buffer.selection must be one of {SELECTIONS}, got {selection!r}")
    if not hits:
        return None
    if selection == "nearest":
        return hits[0]
    best = max(hits, key=lambda hit: hit.trace.reward)
    return best if best.trace.reward > 0 else None
