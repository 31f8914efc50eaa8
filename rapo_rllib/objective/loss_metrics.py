"""What the policy loss tells about itself: sums over tokens, to be added over micro-batches, steps and learners.

policy_loss --> LossMetrics (+ LossMetrics ...) --averages--> numbers for people
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch


@dataclass(frozen=True)
class LossMetrics:
    """Detached scalars of one or more calls of ``policy_loss``; tokens of weight 0 are in none of them.

    Example: ``(first + second).averages()["ratio"]`` is the mean ratio over the tokens of both calls.
    """

    num_tokens: torch.Tensor  # tokens of weight > 0
    ratio_sum: torch.Tensor  # r = π_θ / π_old, before shaping and clipping
    ratio_max: torch.Tensor
    clipped_low: torch.Tensor  # tokens without gradient: A < 0 and r̂ < 1 - ε_low
    clipped_high: torch.Tensor  # tokens without gradient: A > 0 and r̂ > 1 + ε_high
    dual_clipped: torch.Tensor  # tokens without gradient: A < 0 and r̂ > c
    truncation_sum: torch.Tensor  # weights min(π_old / π_engine, C); 1 each where none is used
    truncated: torch.Tensor  # tokens whose weight was cut to the cap C
    # Between learner and engine as they are: the mismatch alone on the first optimiser step of a batch, later the updates too.
    mismatch_sum: torch.Tensor  # |log π_θ - log π_engine|, nats
    mismatch_max: torch.Tensor
    mismatch_kl_sum: torch.Tensor  # estimate of KL(π_engine ‖ π_θ), nats
    kl_sum: torch.Tensor  # estimate of KL(π_θ ‖ π_ref), nats

    @classmethod
    def zeros(cls) -> LossMetrics:
        """The metrics of no token: what a sum starts from."""
        return cls(*(torch.zeros(()) for _ in fields(cls)))

    def __add__(self, other: LossMetrics) -> LossMetrics:
        """Sums are added; maxima stay maxima."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return LossMetrics(
            **{name: torch.maximum(*pair) if name.endswith("_max") else pair[0] + pair[1] for name, pair in pairs.items()}
        )

    def averages(self) -> dict[str, float]:
        """Means per token (``ratio``, ``clipped_low``, ...), 0 where there was none; maxima and ``num_tokens`` as they are."""
        num_tokens = float(self.num_tokens)
        result = {}
        for field in fields(self):
            value = float(getattr(self, field.name))
            whole = field.name == "num_tokens" or field.name.endswith("_max")
            result[field.name.removesuffix("_sum")] = value if whole else value / max(num_tokens, 1.0)
        return result
