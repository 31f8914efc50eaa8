"""Metrics of attempts at the questions of a benchmark, as pure functions.

Shapes: ``Q`` questions, ``N`` attempts at each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rapo_rllib.errors import error_kind

if TYPE_CHECKING:
    from rapo_rllib.agents.agent import Attempt

LEVEL, RESAMPLES = 0.95, 10_000
_BLOCK = 1_000  # resamples drawn at a time: with many questions, all at once would not fit into memory


def pass_at_k(num_attempts: int, num_correct: int, k: int) -> float:
    """Estimate without bias the chance that one of ``k`` attempts is right, ``1 - C(n - c, k) / C(n, k)`` (arXiv 2107.03374).

    Raises:
        ValueError: unless ``1 <= k <= num_attempts`` and ``0 <= num_correct <= num_attempts``.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not (1 <= k <= num_attempts and 0 <= num_correct <= num_attempts):
        raise ValueError(f"pass@{k} of {num_correct} right among {num_attempts} attempts is not defined")
    wrong = num_attempts - num_correct
    if wrong < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(wrong + 1, num_attempts + 1)))


def bootstrap_interval(
    values: Sequence[float], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Compute the bounds of a confidence interval of the mean by the percentile bootstrap.

    Args:
        values: one per question, ``[Q]``: attempts at one question depend on each other, questions do not.
        level: share of the resampled means inside the interval.
        resamples: number of resamples.
        seed: of the resampling; the same seed gives the same interval.

    Raises:
        ValueError: there are no values.
    """
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        raise ValueError("an interval needs at least one value")
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [
            rng.choice(array, size=(min(_BLOCK, resamples - start), array.size)).mean(axis=1)
            for start in range(0, resamples, _BLOCK)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def summary(questions: Sequence[Sequence[Attempt]]) -> dict[str, Any]:
    """Compute the metrics of one model on one benchmark; shares lie in [0, 1].

    Args:
        questions: the attempts at each question, ``[Q][N]``, equally many at each.

    Raises:
        ValueError: there are no questions.
    """
    per_question, attempts = accuracies(questions), [attempt for each in questions for attempt in each]
    found: dict[str, Any] = {
        "questions": len(questions),
        "samples": len(questions[0]) if questions else 0,
        "accuracy": _mean(per_question),  # with several samples: avg@k
        "accuracy_ci": list(bootstrap_interval(per_question)),
    }
    found["pass_at_k"] = {str(k): _mean_pass(questions, k) for k in _ks(found["samples"])}
    if all(one.f1 is not None for one in attempts):
        f1 = [_mean([one.f1 or 0.0 for one in each]) for each in questions]
        found |= {"f1": _mean(f1), "f1_ci": list(bootstrap_interval(f1))}
        found["exact_match"] = _mean([one.exact_match or 0.0 for one in attempts])
    return found | {
        "format_rate": _mean([one.format_ok for one in attempts]),
        "reward": _mean([one.reward for one in attempts]),  # per attempt, as the next four
        "tool_calls": _mean([one.tool_calls for one in attempts]),
        "retrievals": _mean([len(one.retrieved) for one in attempts]),
        "tokens": _mean([one.tokens for one in attempts]),
        "seconds": _mean([one.seconds for one in attempts]),
        "failed": sum(one.failed for one in attempts),  # counted as wrong
        "failed_retrievals": sum(one.failed_retrievals for one in attempts),
        "ends": dict(Counter(one.end for one in attempts)),
        "errors": dict(Counter(error_kind(one.error) for one in attempts if one.failed)),
        "unanswered": dict(Counter(one.end for one in attempts if one.predicted is None and not one.failed)),
        "score_failures": dict(Counter(one.score_failure for one in attempts if one.score_failure)),
    }


def accuracies(questions: Sequence[Sequence[Attempt]]) -> list[float]:
    """Compute the share of right attempts at each question: ``[Q]``."""
    return [_mean([one.correct for one in attempts]) for attempts in questions]


def paired_difference(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """Compute the mean of ``second - first`` over the same questions, with its confidence interval.

    Raises:
        ValueError: the sequences differ in length, or are empty.
    """
    differences = [b - a for a, b in zip(first, second, strict=True)]
    return {"difference": _mean(differences), "difference_ci": list(bootstrap_interval(differences))}


def _mean_pass(questions: Sequence[Sequence[Attempt]], k: int) -> float:
    return _mean([pass_at_k(len(attempts), sum(one.correct for one in attempts), k) for attempts in questions])


def _ks(num_samples: int) -> list[int]:
    """List each ``k`` of pass@k: the powers of two up to the number of samples, and that number itself."""
    powers = [2**i for i in range(num_samples.bit_length()) if 2**i <= num_samples]
    return sorted({*powers, num_samples})


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
