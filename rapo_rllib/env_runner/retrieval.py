"""Make the retriever that a config describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rapo_rllib.rollout.retriever import Retriever, TraceSource


def make_retriever(config: Any, source: TraceSource) -> Retriever:
    """Make what answers histories from ``source``, as ``config`` has it."""
    from rapo_rllib.rollout.retriever import Retriever

    settings = config.buffer_settings
    return Retriever(
        source,
        selection=settings.selection,
        top_k=settings.top_k,
        fallback_text=settings.fallback_text,
        usage_weight=settings.usage_weight,
        noise=config.retrieval_noise,
        seed=config.seed or 0,
    )
