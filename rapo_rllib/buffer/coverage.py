"""Count the training questions that have step traces in the buffer. Flow: ``algorithm/off_policy.py`` -> here.

Retrieval can show a step of the very question only where there is one; those of others rarely fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rapo_rllib.buffer.parts import pieces
from rapo_rllib.buffer.store import StepTraceBuffer


class Coverage(NamedTuple):
    """Of the training questions."""

    covered: int  # that have step traces
    total: int

    @property
    def share(self) -> float:
        """Of the questions, in [0, 1]; 0 without any."""
        return self.covered / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"step traces for {self.covered:,} of {self.total:,} training questions"


def coverage(buffer: StepTraceBuffer, questions: Iterable[str]) -> Coverage | None:
    """Compare texts, as the filters do.

    Args:
        buffer: the whole of its column of questions is read.
        questions: texts of the training questions.

    Returns:
        None where questions have no text beforehand: the environment is asked by seed.

    Raises:
        RetrievalError: Milvus does not answer.
    """
    wanted = {pieces(text)[0] for text in questions if text.strip()}
    if not wanted:
        return None
    return Coverage(len(wanted.intersection(buffer.reader.questions())), len(wanted))
