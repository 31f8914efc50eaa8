"""Filters of step traces that may answer a query, and the choice among the nearest of them."""

from __future__ import annotations

from collections.abc import Sequence

from rapo_rllib.milvus.expressions import Condition
from rapo_rllib.settings import TraceFilter
from rapo_rllib.types import HistoryQuery, RetrievedTrace

URI_KEY, EMBEDDER_KEY = "step_trace_buffer.uri", "step_trace_buffer.embedder"  # what the user calls them, for messages


def condition_of(chosen: TraceFilter, query: HistoryQuery) -> Condition | None:
    """The filter for one query; None: any trace. ``hide_answers`` is no condition: see ``shown_answers.py``.

    Questions are compared by their text: data sets number theirs alike.
    """
    return None if chosen.question == "any" else Condition("question", query.question, negated=chosen.question == "other")


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
