"""Filter step traces: a ``TraceFilter`` as the conditions that one query's step traces fulfil.

Questions are compared by their text: data sets number theirs alike. ``hide_answers`` is none of the conditions: see
``shown_answers.py``.
"""

from __future__ import annotations

from rapo_rllib.milvus.expressions import AtLeast, Conditions, OneOf
from rapo_rllib.settings import TraceFilter
from rapo_rllib.types import HistoryQuery


def conditions_of(chosen: TraceFilter, query: HistoryQuery) -> Conditions:
    """The filter for one query.

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
