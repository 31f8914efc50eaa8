"""Let an agent answer questions, of a build or of an evaluation, and keep the answers.

questions - what the journal has -> agent -> journal, progress
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rapo_rllib.agents.agent import OffPolicyAgent
from rapo_rllib.agents.journal import Journal
from rapo_rllib.errors import AgentError
from rapo_rllib.types import Question

MAX_FAILED = 48  # attempts in a row, in questions of which most attempts failed: agent or environment is gone


@dataclass
class Progress:
    """Counts of attempts at all questions of a command."""

    total: int
    found: int = 0  # by earlier runs
    ended: int = 0  # in this run, as are the others
    failed: int = 0
    tokens: int = 0  # of questions that are complete
    started: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        """Attempts that need not be made any more."""
        return self.found + self.ended

    @property
    def seconds(self) -> float:
        """Seconds since the first question was asked."""
        return time.monotonic() - self.started


def ask(
    agent: OffPolicyAgent,
    name: tuple[str, str],
    questions: Sequence[Question],
    journal: Journal,
    progress: Progress,
    tell: Callable[[Progress], None],
) -> None:
    """Ask an agent what the journal lacks.

    Args:
        agent: writes attempts.
        name: of the agent and of the benchmark, by which the journal has the answers.
        questions: with different ids; those that are in the journal are not asked.
        journal: entered; keeps the answers.
        progress: is counted on.
        tell: called with it whenever an attempt has ended or a question is complete.

    Raises:
        AgentError: the agent refuses every request; too few attempts in a row came about, or, in this run and those before it,
            not one.
        EngineError: its engine broke.
        RetrievalError: Milvus does not answer.
    """

    def count_end() -> None:
        progress.ended += 1
        tell(progress)

    if not progress.ended:
        progress.started = time.monotonic()
    failed_in_a_row, written, error = 0, 0, ""
    left = [question for question in questions if (*name, question.id) not in journal]
    for answered in agent.answers(left, count_end):
        journal.add(*name, answered)
        failed = [attempt.error for attempt in answered.attempts if attempt.failed]
        error = next(iter(failed), error)
        progress.failed += len(failed)
        progress.tokens += sum(attempt.tokens for attempt in answered.attempts)
        written += len(answered.attempts) - len(failed)
        failed_in_a_row = failed_in_a_row + len(failed) if 2 * len(failed) > len(answered.attempts) else 0
        if failed_in_a_row >= MAX_FAILED:
            raise AgentError(f"{failed_in_a_row} attempts in a row failed: {error}")
        tell(progress)
    if left and not written and len(left) == len(questions):
        raise AgentError(f"not one attempt at {len(left):,} questions came about: {error}")
