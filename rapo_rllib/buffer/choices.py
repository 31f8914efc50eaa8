"""Check what a user may choose about a Step-Trace Buffer, and make the choice among the nearest step traces of one query."""

from __future__ import annotations

from collections.abc import Sequence

from rapo_rllib.types import RetrievedTrace

URI_KEY, EMBEDDER_KEY = "step_trace_buffer.uri", "step_trace_buffer.embedder"  # what the user calls them, for messages


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
