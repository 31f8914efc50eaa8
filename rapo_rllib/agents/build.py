"""From the answers of an off-policy agent to a Step-Trace Buffer. algorithm.md section 4.

journal -> the best attempts at each question -> steps -> buffer
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rapo_rllib.agents.agent import Attempt
from rapo_rllib.agents.journal import Journal
from rapo_rllib.buffer.build import NOTE, BestOf, build_lock, cut
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.types import ExpertTrajectory, Question, StepTrace


@dataclass
class Keeping:
    """Rule for keeping attempts, their source, and how many were kept."""

    source: str
    keep: int = 5  # K
    min_reward: float | None = None  # None: anything positive
    unfinished: int = 0  # questions
    trajectories: int = 0
    steps: int = 0
    added: int = 0  # step traces that the buffer did not have

    def store(self, journal: Journal, questions: Iterable[Question], buffer: StepTraceBuffer) -> None:
        """Store the steps of the best attempts, with the buffer locked.

        The buffer is marked as ready for training only if every question is finished.

        Args:
            journal: holds attempts; questions that are not finished are left out, and counted.
            questions: in the order in which they are stored.
            buffer: already created; its traces from other sources stay, and so does the note on its first source.

        Raises:
            RetrievalError: Milvus does not answer.
        """
        with build_lock(buffer):
            self.added = buffer.insert(BestOf().improving(self._traces(journal, questions, buffer.settings.level))).added
            buffer.fit_index()
            if not self.unfinished and buffer.note(NOTE) is None:
                buffer.set_note(NOTE, {"traces": f"agent:{self.source}", "max_traces": None})

    def _traces(self, journal: Journal, questions: Iterable[Question], level: str) -> Iterator[StepTrace]:
        for question in questions:
            key = self.source, "", question.id
            answered = journal.read(key) if key in journal else None
            if answered is None or not journal.is_finished(answered.attempts):
                self.unfinished += 1
            else:
                for attempt in best_attempts(answered.attempts, self.keep, self.min_reward):
                    self.trajectories += 1
                    self.steps += len(attempt.steps)
                    yield from cut(ExpertTrajectory(answered.question, attempt.steps, attempt.reward, self.source), level)


def best_attempts(attempts: Sequence[Attempt], keep: int, min_reward: float | None = None) -> list[Attempt]:
    """Return the ``keep`` attempts with the highest reward, best first; of equal rewards, those that were sampled first.

    Left out are attempts that ended with an error, that have no step or an empty one, or that repeat the text of an
    attempt before them in this order: a buffer stores no empty text, and each text once.

    Args:
        attempts: at one question.
        keep: ``K``.
        min_reward: the least that is kept; None: anything positive.
    """
    found: dict[tuple[str, ...], Attempt] = {}
    for attempt in sorted(attempts, key=lambda attempt: -attempt.reward):
        good = attempt.reward > 0 if min_reward is None else attempt.reward >= min_reward
        if good and attempt.steps and all(attempt.steps) and not attempt.failed:
            found.setdefault(attempt.steps, attempt)
    return list(found.values())[:keep]
