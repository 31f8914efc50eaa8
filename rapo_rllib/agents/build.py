"""Questions, an off-policy agent and a Step-Trace Buffer brought together. algorithm.md section 4.

questions -> agent -> the best attempts -> journal (disk) -> steps -> buffer

Who is told first is the disk. A build that was stopped goes on: finished questions are not asked again, and what of them the
buffer lacks is stored first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from rapo_rllib.agents.agent import OffPolicyAgent
from rapo_rllib.agents.attempts import AnsweredQuestion, Attempt
from rapo_rllib.agents.journal import Journal, Totals
from rapo_rllib.buffer.build import NOTE, SHAPE, build_lock, cut
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.embedding.local import BATCH_SIZE
from rapo_rllib.errors import AgentError
from rapo_rllib.types import ExpertTrajectory, Question, StepTrace

MAX_FAILED_QUESTIONS = 3  # in a row, of which the agent wrote less than half: it is gone


@dataclass(frozen=True)
class Keeping:
    """The attempts that are kept, and their name."""

    source: str
    keep: int = 5  # K
    min_reward: float | None = None  # None: anything positive


@dataclass
class AgentBuild:
    """Progress of a build."""

    total: int  # questions
    samples: int
    totals: Totals  # with those of earlier runs
    found: int = 0  # questions that were finished before
    attempts: int = 0  # that ended in this run
    tokens: int = 0  # of questions that were finished in this run
    seconds: float = 0.0
    added: int = 0  # step traces that this run stored
    unfinished: int = 0  # questions that the agent failed at; the next run asks them again


def build_from_agent(
    open_agent: Callable[[], OffPolicyAgent],
    questions: Sequence[Question],
    journal: Journal,
    buffer: StepTraceBuffer,
    keeping: Keeping,
    samples: int,
    on_progress: Callable[[AgentBuild], None],
) -> AgentBuild:
    """Let the agent answer what is not answered yet, and store the steps of its best attempts.

    Args:
        open_agent: makes what writes ``samples`` attempts at each question; called only if there is something to write.
        questions: all of them, with different ids.
        journal: entered; remembers what is finished.
        buffer: created if it is not there; traces of other sources stay.
        keeping: which attempts are kept.
        samples: ``N``.
        on_progress: told whenever an attempt has ended or a question is stored.

    Raises:
        AgentError: the agent refuses every request, or fails at one question after the other.
        EngineError: its engine broke.
        RetrievalError: Milvus does not answer.
        ValueError: the buffer was made with another embedder or at another level; or there is no such agent.
    """
    buffer.create()
    left = [question for question in questions if question.id not in journal.finished]
    state = AgentBuild(len(questions), samples, journal.totals, found=len(questions) - len(left))
    state.added += _stored(buffer, _traces(buffer, journal.trajectories()))
    started, pending = time.monotonic(), list[StepTrace]()

    def tell(attempts: int = 0) -> None:
        state.attempts += attempts
        state.seconds = time.monotonic() - started
        on_progress(state)

    if left:
        with closing(open_agent()) as agent:
            started = time.monotonic()
            for answered in _written(agent.answers(left, lambda: tell(1)), state):
                kept = best_attempts(answered.attempts, keeping.keep, keeping.min_reward)
                pending += _traces(buffer, journal.add(answered, kept, keeping.source))
                state.tokens += sum(attempt.num_tokens for attempt in answered.attempts)
                if len(pending) >= BATCH_SIZE:
                    state.added += _stored(buffer, pending)
                    pending.clear()
                tell()
    state.added += _stored(buffer, pending)
    if not state.unfinished:
        _declare_complete(buffer, keeping.source)
    return state


def _written(answers: Iterator[AnsweredQuestion], state: AgentBuild) -> Iterator[AnsweredQuestion]:
    """The questions of which the agent wrote at least half of the attempts; the others are for the next run."""
    in_a_row = 0
    for answered in answers:
        failed = [attempt.error for attempt in answered.attempts if attempt.agent_failed]
        if 2 * len(failed) <= len(answered.attempts):
            in_a_row = 0
            yield answered
            continue
        state.unfinished += 1
        in_a_row += 1
        if in_a_row == MAX_FAILED_QUESTIONS:
            raise AgentError(f"the agent failed at {in_a_row} questions in a row: {failed[-1]}")


def _stored(buffer: StepTraceBuffer, traces: Iterable[StepTrace]) -> int:
    """Store what is not stored yet, while nobody else adds to the buffer; returns how many that were."""
    with build_lock(buffer):
        return buffer.insert(traces)


def _traces(buffer: StepTraceBuffer, experts: Iterable[ExpertTrajectory]) -> Iterator[StepTrace]:
    """Step traces, or at the level ``trajectory`` one trace of all steps."""
    for expert in experts:
        yield from cut(expert, buffer.settings.level)


def _declare_complete(buffer: StepTraceBuffer, source: str) -> None:
    """Say that the buffer may be trained with; what it was first built from stays its origin."""
    buffer.fit_index()
    before = buffer.note(NOTE, SHAPE) or {"traces": f"agent:{source}", "max_traces": None}
    buffer.set_note(NOTE, before)


def best_attempts(attempts: Sequence[Attempt], keep: int, min_reward: float | None = None) -> list[Attempt]:
    """The ``keep`` attempts with the highest reward, best first; of equal rewards, those that were sampled first.

    Attempts that ended with an error, that have an empty step, or that are the same text as one that is kept are left out: a
    buffer stores a text, and once.

    Args:
        attempts: at one question.
        keep: ``K``.
        min_reward: the least that is kept; None: anything positive.
    """
    found: dict[tuple[str, ...], Attempt] = {}
    for attempt in sorted(attempts, key=lambda attempt: -attempt.reward):
        good = attempt.reward > 0 if min_reward is None else attempt.reward >= min_reward
        if good and attempt.steps and all(attempt.steps) and attempt.end != "error":
            found.setdefault(attempt.steps, attempt)
    return list(found.values())[:keep]
