"""The canary: fixed token sequences that learner and engine both score. When the learner moves, the engine must move with it.

It must also score them as the learner does. That alone says little: at lr 1e-5 a policy of 17 iterations differs from the
untrained one by 0.096 nats, which is what bfloat16 may cost. Moves are compared more closely: what learner and engine always
compute differently is the same before and after, and cancels.

    learner before -> learner now   moved by 0.00080 nats on average
    engine before  -> engine now    moved by the same, up to a small error; not at all, if it missed the update
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rapo_rllib.errors import WeightSyncError

Scores = list[list[float]]  # logprobs of every token but the first of each sequence, nats

_TEXTS = (
    "Tom has 3 apples and buys 5 more. How many apples does he have now? <python>3 + 5</python>",
    "The quick brown fox jumps over the lazy dog; then, 7 * 8 = 56 and \\boxed{56}.",
    "def area(width, height):\n    return width * height\n\nprint(area(6, 7))",
)
# of float32 on both sides, and where one side computes in bfloat16
_TOLERANCE = {True: 0.01, False: 0.1}  # nats; healthy engines are at 1e-5 and 1e-2
_ROUNDING = {True: 1e-6, False: 2.0**-8}  # nats that a score can change by for no reason
# what an engine may miss a move by: so many times what the two differed by before it, or this share of it if that is more
_NOISE, _SHARE = 8.0, 0.01
_STILL = 2.0  # so many times that difference is enough of a move to expect any at all


def canary_sequences(tokenizer: Any) -> list[list[int]]:
    """A few fixed token sequences, at most 48 tokens each."""
    return [tokenizer.encode(text, add_special_tokens=False)[:48] for text in _TEXTS]


@dataclass(frozen=True)
class CanaryResult:
    """Agreement of an engine's scores with the learner's; nats, means over all tokens but ``largest``."""

    mean: float  # |engine - learner|
    largest: float
    learner_moved: float = 0.0  # |learner now - learner before|; 0 without a before
    engine_missed: float = 0.0  # |(engine now - engine before) - (learner now - learner before)|
    allowed: float = math.inf  # what it may miss

    @property
    def conclusive(self) -> bool:
        """Whether the learner's move was so clear that an engine that did not move at all would be told."""
        return self.learner_moved > self.allowed


class Canary:
    """Compares scores, and remembers those of every engine's last confirmed weights.

    Args:
        sequences: of tokens.
        tolerance: mean |Δ logprob| between engine and learner that is allowed, nats; None: by ``exact``.
        exact: whether both compute in float32.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], tolerance: float | None, exact: bool) -> None:
        self.sequences = [list(sequence) for sequence in sequences]
        self.tolerance = _TOLERANCE[exact] if tolerance is None else tolerance
        self._rounding = _ROUNDING[exact]
        self._before: dict[str, tuple[list[float], list[float]]] = {}  # learner's and engine's scores, by engine

    def check(self, engine: str, expected: Scores, scored: Scores) -> CanaryResult:
        """Compare, and remember if all is well.

        Args:
            engine: which it is; one that was restarted is another, and has nothing that it moved from.
            expected: the learner's scores.
            scored: the engine's.

        Raises:
            WeightSyncError: they differ by more than ``tolerance``, or the learner moved and the engine did not follow.
        """
        learner, own = _flat(expected, scored)
        result = self._compared(engine, learner, own)
        if not result.mean <= self.tolerance:  # also when it is not a number
            raise WeightSyncError(
                f"it differs from the learner by {result.mean:.4f} nats on average (at most {result.largest:.4f}) on fixed "
                f"prompts, where canary_tolerance is {self.tolerance}: it holds stale or partial weights"
            )
        if not result.engine_missed <= result.allowed:
            raise WeightSyncError(
                f"since its last confirmed weights the learner moved by {result.learner_moved:.2e} nats on average on fixed "
                f"prompts, and the engine missed {result.engine_missed:.2e} of that, where {result.allowed:.2e} is usual: it "
                "holds stale or partial weights"
            )
        self._before[engine] = learner, own
        return result

    def _compared(self, engine: str, learner: list[float], own: list[float]) -> CanaryResult:
        differences = [abs(a - b) for a, b in zip(learner, own, strict=True)]
        mean, largest = sum(differences) / len(differences), max(differences)
        if engine not in self._before:
            return CanaryResult(mean, largest)
        learner_before, own_before = self._before[engine]
        moves = [now - before for now, before in zip(learner, learner_before, strict=True)]
        own_moves = [now - before for now, before in zip(own, own_before, strict=True)]
        moved = _mean_size(moves)
        noise = max(self._rounding, _mean_size([a - b for a, b in zip(own_before, learner_before, strict=True)]))
        stood_still = moved > _STILL * noise and not any(own_moves)  # no noise looks like this
        missed = _mean_size([a - b for a, b in zip(own_moves, moves, strict=True)])
        allowed = 0.0 if stood_still else max(_NOISE * noise, _SHARE * moved)
        return CanaryResult(mean, largest, moved, missed, allowed)


def _flat(expected: Scores, scored: Scores) -> tuple[list[float], list[float]]:
    """All tokens of all sequences; raises ``ValueError`` unless there are as many scores on both sides."""
    pairs = [pair for left, right in zip(expected, scored, strict=True) for pair in zip(left, right, strict=True)]
    return [left for left, _ in pairs], [right for _, right in pairs]


def _mean_size(values: Sequence[float]) -> float:
    return sum(map(abs, values)) / len(values)
