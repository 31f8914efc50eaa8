"""The Step-Trace Buffer in an evaluation that asks for retrieval: read, never written, and without its questions."""

from __future__ import annotations

from collections.abc import Iterable

from rapo_rllib.buffer.leak_guard import LeakGuard, refuse_leaks
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import Question


def check_retrieval_prob(value: float) -> None:
    """Raise ``ValueError`` unless it is a chance."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"--retrieval-prob {value:g}: must be between 0 and 1")


def opened_buffer(settings: BufferSettings, questions: Iterable[Question]) -> StepTraceBuffer:
    """The buffer, ready to be asked; the caller closes it.

    Raises:
        ValueError: there is none, or it holds step traces of the questions.
        RetrievalError: Milvus does not answer.
    """
    buffer = StepTraceBuffer(settings)
    try:
        if not buffer.exists():
            raise ValueError(
                f"--retrieval-prob: there is no collection {buffer.collection!r} at {buffer.uri}; name a buffer by "
                "--set step_trace_buffer.uri=... (and step_trace_buffer.collection=...)"
            )
        refuse_leaks(buffer, LeakGuard(question.text for question in questions))
        buffer.prepare()
    except BaseException:
        buffer.close()
        raise
    return buffer
