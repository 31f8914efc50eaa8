"""Which attempts at a question are kept: the ``K`` with the highest reward. algorithm.md section 4."""

from __future__ import annotations

from collections.abc import Sequence

from rapo_rllib.agents.attempts import Attempt


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
