"""Filters of step traces that may answer a query, and the choice among the nearest of them."""

from __future__ import annotations

from collections.abc import Sequence

from rapo_rllib.milvus.expressions import AtLeast, Conditions, OneOf
from rapo_rllib.settings import TraceFilter
from rapo_rllib.types import HistoryQuery, RetrievedTrace

URI_KEY, EMBEDDER_KEY = "step_trace_buffer.uri", "step_trace_buffer.embedder"  # what the user calls them, for messages


def conditions_of(chosen: TraceFilter, query: HistoryQuery) -> Conditions:
    """The filter for one query. ``hide_answers`` is none of the conditions: see ``shown_answers.py``.

    Questions are compared by their text: data sets number theirs alike.

    Example: ``TraceFilter(sources=("gpt",), min_reward=0.5)`` is ``source == "gpt" and reward >= 0.5`` in Milvus' language.
    """
    found: list[OneOf | AtLeast] = []
    if chosen.sources is not None:
        found.append(OneOf("source", tuple(chosen.sources)))
    if chosen.min_reward is not None:
        found.append(AtLeast("reward", float(chosen.min_reward)))
    if chosen.question != "any":
        found.append(OneOf("question", (query.question,), negated=chosen.question == "other"))
    return tuple(found)


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
