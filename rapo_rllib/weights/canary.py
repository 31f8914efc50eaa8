"""The canary: fixed token sequences that learner and engine both score. When the learner moves, the engine must move with it.

The engine must also score them as the learner does. That alone says little: at lr 1e-5 a policy of 17 iterations differs from
the untrained one by 0.096 nats, as much as bfloat16 may cost. Moves are compared more closely: a constant difference between
the computations of learner and engine is the same before and after a move, and cancels.

    learner before -> learner now   moved by 0.00080 nats on average
    engine before  -> engine now    moved by the same, up to a small error; not at all, if it missed the update

An engine that follows never scores every token as before, to the last bit: new weights shift all roundings, and in bfloat16
scores jitter by more than a small update moves them. So an engine that stands still shows at moves far below its difference
from the learner. Scores that jitter but do not follow show over all n tokens: along the move, the error is one token's / √n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rapo_rllib.errors import WeightSyncError

Scores = list[list[float]]  # logprobs of every token but the first of each sequence, nats

_TEXTS = (
    "Tom has 3 apples and buys 5 more. How many apples does he have now? <python>3 + 5</python>",
    "The quick brown fox jumps over the lazy dog; then, 7 * 8 = 56 and \\boxed{56}.",
    "def area(width, height):\n    return width * height\n\nprint(area(6, 7))",
)
# True: both sides compute in float32; False: one side computes in bfloat16
_TOLERANCE = {True: 0.01, False: 0.1}  # nats; healthy engines are at 1e-5 and 1e-2
_ROUNDING = {True: 1e-6, False: 2.0**-8}  # nats by which a score may change without a cause
# mean move of the learner, nats, above which an engine that follows cannot score all tokens as before. In bfloat16, on models
# of 2 to 4 layers, nine of ten scores change at 1e-5 if many weights do; at 1e-4, one of ten if at most 17 weights do, else all
_STILL = {True: 2.0**-18, False: 2.0**-12}
# an engine may miss of a move: _NOISE times its difference from the learner before it, or _SHARE of the move if that is more;
_NOISE, _SHARE = 8.0, 0.01
_BEHIND = 0.1  # along the move, this share of it

Since = tuple[list[float], list[float]]  # earlier scores of learner and engine


def canary_sequences(tokenizer: Any) -> list[list[int]]:
    """Return a few fixed token sequences, at most 48 tokens each."""
    return [tokenizer.encode(text, add_special_tokens=False)[:48] for text in _TEXTS]


@dataclass(frozen=True)
class CanaryResult:
    """Agreement of an engine's scores with the learner's, nats; numbers are means over tokens, except ``largest``."""

    mean: float  # |engine - learner|
    largest: float
    learner_moved: float = 0.0  # |learner now - learner before|; 0 if nothing came before
    engine_missed: float = 0.0  # |(engine now - engine before) - (learner now - learner before)|
    stale: bool = False  # it missed more than rounding explains
    conclusive: bool = False  # a move so clear that an engine that only jitters would be recognised


class Canary:
    """Comparison of scores, with a memory of each engine's scores under its last confirmed weights.

    Args:
        sequences: of token ids, scored by learner and engine.
        exact: whether both compute in float32.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], exact: bool) -> None:
        self.sequences = [list(sequence) for sequence in sequences]
        self.tolerance = _TOLERANCE[exact]
        self._rounding, self._still = _ROUNDING[exact], _STILL[exact]
        # by engine: the last scores that differ from those before; the last scores that it was sure to have followed to
        self._before: dict[str, tuple[Since, Since]] = {}

    def check(self, engine: str, expected: Scores, scored: Scores) -> CanaryResult:
        """Compare an engine's scores and moves with the learner's; remember the scores if they agree.

        Args:
            engine: its name. A restarted engine has another name, and no earlier scores.
            expected: the learner's scores.
            scored: the engine's.

        Raises:
            WeightSyncError: the scores differ by more than ``tolerance`` on average, or the engine did not follow a move.
        """
        now = learner, own = _flat(expected, scored)
        differences = [abs(a - b) for a, b in zip(learner, own, strict=True)]
        result = CanaryResult(sum(differences) / len(differences), max(differences))
        if not result.mean <= self.tolerance:  # also when it is not a number
            raise WeightSyncError(
                f"it differs from the learner by {result.mean:.4f} nats on average (at most {result.largest:.4f}) on fixed "
                f"prompts, where {self.tolerance} is allowed: it holds stale or partial weights"
            )
        if engine not in self._before:
            self._before[engine] = now, now
            return result
        last, sure = self._before[engine]
        recent, longer = self._moved(result, last, now), self._moved(result, sure, now)
        for moved in (recent, longer):
            if moved.stale:
                raise WeightSyncError(
                    f"since its last confirmed weights the learner moved by {moved.learner_moved:.2e} nats on average on fixed "
                    f"prompts, and the engine missed {moved.engine_missed:.2e} of that, more than rounding explains: it holds "
                    "stale or partial weights"
                )
        self._before[engine] = last if own == last[1] else now, now if longer.conclusive else sure
        return recent

    def _moved(self, result: CanaryResult, since: Since, now: Since) -> CanaryResult:
        """Compare the moves of both. The engine is stale if it missed too much, in all or along the move, or stood still."""
        moves, own_moves = ([b - a for a, b in zip(*pair, strict=True)] for pair in zip(since, now, strict=True))
        errors = [own - learner for learner, own in zip(*since, strict=True)]
        missing = [move - own for move, own in zip(moves, own_moves, strict=True)]
        moved, missed = _mean_size(moves), _mean_size(missing)
        length = math.hypot(*moves)
        clear = _NOISE * max(self._rounding, math.hypot(*errors) / math.sqrt(len(errors)))
        stale = (
            not missed <= max(_NOISE * max(self._rounding, _mean_size(errors)), _SHARE * moved)
            or math.fsum(a * b for a, b in zip(missing, moves, strict=True)) > max(clear, _BEHIND * length) * length
            or (not any(own_moves) and moved > self._still)
        )
        return replace(result, learner_moved=moved, engine_missed=missed, stale=stale, conclusive=length > clear)


def _flat(expected: Scores, scored: Scores) -> tuple[list[float], list[float]]:
    """Flatten both sides' scores; raises ``ValueError`` unless both have as many scores of each sequence."""
    pairs = [pair for left, right in zip(expected, scored, strict=True) for pair in zip(left, right, strict=True)]
    return [left for left, _ in pairs], [right for _, right in pairs]


def _mean_size(values: Sequence[float]) -> float:
    return sum(map(abs, values)) / len(values)
