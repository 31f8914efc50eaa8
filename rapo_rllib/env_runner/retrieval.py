"""Make the retriever that a job's settings describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rapo_rllib.rollout.retriever import Retriever, TraceSource
    from rapo_rllib.settings import Settings


def make_retriever(settings: Settings, source: TraceSource) -> Retriever:
    """Make what answers histories from ``source``, as ``settings`` have it."""
    from rapo_rllib.rollout.retriever import Retriever

    buffer = settings.buffer
    return Retriever(
        source,
        selection=buffer.selection,
        top_k=buffer.top_k,
        fallback_text=buffer.fallback_text,
        noise=settings.rollout.retrieval_noise,
        seed=settings.rllib.seed or 0,
    )
