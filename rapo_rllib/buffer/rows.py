"""Conversion of step traces to rows of a Milvus collection, and back. Flow: ``store.py`` and ``writing.py`` use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from rapo_rllib.milvus.schema import MAX_VARCHAR_BYTES, Field
from rapo_rllib.traces.rows import MAX_ID_BYTES, MAX_NAME_BYTES
from rapo_rllib.types import RetrievedTrace, StepTrace
from rapo_rllib.validation import utf8_size

FIELDS = (
    Field("id", max_bytes=MAX_ID_BYTES),
    Field("question"),
    Field("history"),
    Field("text"),
    Field("reward", "DOUBLE"),
    Field("question_id", max_bytes=MAX_NAME_BYTES),
    Field("step_index", "INT64"),
    Field("source", max_bytes=MAX_NAME_BYTES),
    Field("weight_version", "INT64"),
)
NAMES = tuple(field.name for field in FIELDS)
assert set(NAMES) == {field.name for field in fields(StepTrace)}


def fits(trace: StepTrace) -> bool:
    """Return whether question and text have at most 65,535 bytes, the most that a column of Milvus holds."""
    return max(_size(trace.question), _size(trace.text)) <= MAX_VARCHAR_BYTES


def check_trace(trace: StepTrace) -> None:
    """Raise ``ValueError`` if a trace has no id or no text, or a text that is no Unicode."""
    if not trace.id or not trace.text:
        raise ValueError(f"a step trace needs an id and a text: got id {trace.id!r}, text {trace.text[:80]!r}")
    for name in NAMES:
        utf8_size(str(getattr(trace, name)), f"{name} of step trace {trace.id!a}")


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _end(history: str) -> str:
    """Cut a history to the end that a column holds. Its key was made of fewer characters; retrieval shows no history."""
    encoded = history.encode()
    return history if len(encoded) <= MAX_VARCHAR_BYTES else encoded[-MAX_VARCHAR_BYTES:].decode(errors="ignore")


def check_columns(stored: Iterable[str], where: str) -> None:
    """Raise ``ValueError`` if a collection's columns are not ``FIELDS``: another version of this package made it."""
    lacking, unknown = sorted(set(NAMES) - set(stored)), sorted(set(stored) - set(NAMES))
    if lacking or unknown:
        raise ValueError(
            f"step_trace_buffer.collection: {where} was made by another version of this package: it lacks the columns "
            f"{lacking}, and has {unknown} besides. Name another collection, to be built anew, or use that version."
        )


def row_of(trace: StepTrace) -> dict:
    """Return the row of a trace; a long history is cut to its end."""
    return {name: getattr(trace, name) for name in NAMES} | {"history": _end(trace.history)}


def retrieved_of(row: dict) -> RetrievedTrace:
    """Return the trace of a found row, with its similarity."""
    similarity = min(1.0, max(-1.0, row["similarity"]))  # rounding may leave the interval
    return RetrievedTrace(trace_of(row), similarity)


def trace_of(row: dict) -> StepTrace:
    """Return the trace of a row."""
    return StepTrace(**{name: row[name] for name in NAMES})


def select(hits: Sequence[RetrievedTrace], selection: str) -> RetrievedTrace | None:
    """Choose one of the ``top_k`` traces of a query (given nearest first): the nearest, or the one with the highest reward.

    ``best_reward`` is the released code's rule (algorithm.md section 9): of equals the nearest; None if no reward is positive.
    """
    if not hits or selection == "nearest":
        return hits[0] if hits else None
    best = max(hits, key=lambda hit: hit.trace.reward)
    return best if best.trace.reward > 0 else None
