"""Let an agent answer the questions of a build or an evaluation, and keep the answers.

questions that the journal lacks -> agent -> journal, progress
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rapo_rllib.agents.agent import OffPolicyAgent
from rapo_rllib.agents.journal import Journal
from rapo_rllib.errors import AgentError
from rapo_rllib.types import Question

MAX_FAILED = 48  # failed attempts at questions in a row, at each of which most failed: agent or environment is gone


@dataclass
class Progress:
    """Counts of attempts at all questions of a command."""

    total: int
    found: int = 0  # by earlier runs
    ended: int = 0  # in this run, like the counts below
    failed: int = 0
    tokens: int = 0  # of questions that are complete
    started: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        """Attempts that have ended, in this run and earlier ones."""
        return self.found + self.ended

    @property
    def tokens_per_s(self) -> float:
        """Tokens of complete questions, per second since the first question was asked."""
        return self.tokens / (time.monotonic() - self.started) if self.tokens else 0.0


def ask(
    agent: OffPolicyAgent,
    name: tuple[str, str],
    questions: Sequence[Question],
    journal: Journal,
    progress: Progress,
    tell: Callable[[Progress], None],
) -> None:
    """Ask an agent the questions that the journal lacks.

    Args:
        agent: writes attempts.
        name: names of agent and benchmark, under which the journal keeps the answers.
        questions: with different ids; questions that are in the journal are not asked.
        journal: already entered; keeps the answers.
        progress: its counts are updated.
        tell: called with ``progress`` whenever an attempt has ended or a question is complete.

    Raises:
        AgentError: the agent refuses every request; or too many attempts in a row failed; or every attempt failed, and
            the journal had none of the questions before.
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
