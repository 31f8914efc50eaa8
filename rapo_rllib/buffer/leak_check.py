"""A buffer that is there already is looked through for evaluation questions, once. Flow: ``build.ensure_built`` -> here."""

from __future__ import annotations

from collections import Counter

from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.milvus.notes import VERSION, VERSION_NOTE

NOTE = "leak_check"


def leaks_in(buffer: StepTraceBuffer, guard: LeakGuard) -> Counter[str]:
    """The evaluation questions that have step traces in the buffer, each with their number."""
    return Counter(question for question in buffer.reader.questions() if guard.leaks(question))


def refuse_leaks(buffer: StepTraceBuffer, guard: LeakGuard) -> None:
    """Look through the buffer, unless that was done for the same evaluation questions and the same version of the buffer.

    Raises:
        ValueError: it holds step traces of evaluation questions.
        RetrievalError: Milvus does not answer.
    """
    if not len(guard):
        return
    version = (buffer.note(VERSION_NOTE, VERSION) or {}).get("version", "")
    checked = {"questions": guard.fingerprint, "version": version}
    if buffer.note(NOTE) == checked:
        return
    found = leaks_in(buffer, guard)
    if found:
        example = next(iter(found))
        raise ValueError(
            f"step_trace_buffer: the buffer in collection {buffer.collection!r} at {buffer.uri} holds {found.total():,} step "
            f"traces of {len(found):,} evaluation questions, such as {example[:120]!r}. `rllib buffer verify --evaluation FILE "
            f"--uri {buffer.uri} --collection {buffer.collection}` lists them; build another buffer without them (`rllib "
            "buffer import --evaluation FILE` leaves them out), or evaluate on other questions."
        )
    buffer.set_note(NOTE, checked)
