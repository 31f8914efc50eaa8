"""Metrics of an update: numbers of tokens and steps, combined over micro-batches, steps and learners.

Flow: every row and every optimiser step of ``learner.update`` -> ``UpdateMetrics`` -> RLlib's ``MetricsLogger``.
"""

from __future__ import annotations

from dataclasses import fields

import torch

from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.objective.loss_metrics import LossMetrics

MISMATCH = ("mismatch", "mismatch_max", "mismatch_kl")


class UpdateMetrics:
    """Adds up detached numbers of one update; nothing waits for the device until :meth:`reduced`."""

    def __init__(self) -> None:
        self._loss = LossMetrics.zeros()
        self._loss_before_steps = LossMetrics.zeros()
        self._entropy_sum = torch.zeros((), dtype=torch.float64)
        self._num_tokens_computed = 0
        self._num_micro_batches = 0
        self._num_steps = 0
        self._num_skipped_steps = 0
        self._step_loss_sum = 0.0
        self._gradient_norm_sum = 0.0

    def add_row(self, num_tokens: int, entropies: torch.Tensor, loss: LossMetrics) -> None:
        """Add a micro-batch of ``num_tokens`` tokens.

        Args:
            num_tokens: that were computed.
            entropies: ``[N]`` of its loss tokens, nats; 0 for off-policy ones, which are not in the mean.
            loss: what the loss says of it.
        """
        self._loss = _on_cpu(loss) + self._loss
        if not self._num_steps:
            self._loss_before_steps = _on_cpu(loss) + self._loss_before_steps
        self._entropy_sum += entropies.detach().double().sum().cpu()
        self._num_tokens_computed += num_tokens
        self._num_micro_batches += 1

    def add_step(self, loss: float, gradient_norm: float) -> None:
        """Count an optimiser step that was taken."""
        self._num_steps += 1
        self._step_loss_sum += loss
        self._gradient_norm_sum += gradient_norm

    def add_skipped_step(self) -> None:
        """Count an optimiser step that was not taken, because its loss or gradient was not finite."""
        self._num_skipped_steps += 1

    def reduced(self, ranks: Ranks, seconds: float) -> dict[str, float]:
        """All metrics over all learners, the same on each; means over nothing are 0.

        The names are those of :class:`LossMetrics`. ``mismatch*`` is measured before the first step only: after it, the
        difference between learner and engine is what was learned.
        """
        loss = _over_ranks(self._loss, ranks)
        before = _over_ranks(self._loss_before_steps, ranks).averages()
        entropy, tokens, rows = ranks.sum([float(self._entropy_sum), self._num_tokens_computed, self._num_micro_batches])
        slowest = ranks.max([seconds])[0]
        steps = max(self._num_steps, 1)
        return {
            **loss.averages(),
            **{name: before[name] for name in MISMATCH},
            "entropy": entropy / max(loss.num_on_policy_tokens, 1.0),
            "total_loss": self._step_loss_sum / steps,
            "gradient_norm": self._gradient_norm_sum / steps,
            "num_steps": self._num_steps,
            "num_skipped_steps": self._num_skipped_steps,
            "num_micro_batches": rows,
            "num_tokens_computed": tokens,
            "seconds": slowest,
            "tokens_per_s": tokens / slowest if slowest else 0.0,
        }


def _on_cpu(metrics: LossMetrics) -> LossMetrics:
    return LossMetrics(**{field.name: getattr(metrics, field.name).detach().cpu().double() for field in fields(metrics)})


def _over_ranks(metrics: LossMetrics, ranks: Ranks) -> LossMetrics:
    values = {field.name: float(getattr(metrics, field.name)) for field in fields(metrics)}
    sums = dict(zip(values, ranks.sum(list(values.values())), strict=True))
    maxima = dict(zip(values, ranks.max(list(values.values())), strict=True))
    chosen = {name: maxima[name] if name.endswith("_max") else sums[name] for name in values}
    return LossMetrics(**{name: torch.tensor(value, dtype=torch.float64) for name, value in chosen.items()})
