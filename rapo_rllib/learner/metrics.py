"""Metrics of an update: numbers of tokens and steps, combined over micro-batches, steps and learners.

Flow: every row and every optimiser step of ``learner.update`` -> ``UpdateMetrics`` -> RLlib's ``MetricsLogger``.
"""

from __future__ import annotations

from dataclasses import fields

import torch

from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.objective.loss_metrics import LossMetrics

_NAMES = tuple(field.name for field in fields(LossMetrics))
MISMATCH = ("mismatch", "mismatch_max", "mismatch_kl")


class UpdateMetrics:
    """Adds up detached numbers of one update; they stay on the device until :meth:`reduced` reads all of them at once."""

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []  # [fields of LossMetrics, and the sum of entropies] of each micro-batch
        self._num_rows_before_steps = 0
        self._num_tokens_computed = 0
        self._steps: list[tuple[float, float]] = []  # loss and norm of the gradient of each that was taken
        self.num_skipped_steps = 0  # not taken, because loss or gradient was not finite

    def add_row(self, num_tokens: int, entropies: torch.Tensor, loss: LossMetrics) -> None:
        """Add a micro-batch of ``num_tokens`` tokens; reads nothing from the device.

        Args:
            num_tokens: that were computed.
            entropies: ``[N]`` of its loss tokens, nats; 0 for off-policy ones, which are not in the mean.
            loss: what the loss says of it.
        """
        numbers = [*(getattr(loss, name) for name in _NAMES), entropies.double().sum()]
        self._rows.append(torch.stack([number.detach().double() for number in numbers]))
        self._num_rows_before_steps += not self._steps
        self._num_tokens_computed += num_tokens

    def add_step(self, loss: float, gradient_norm: float) -> None:
        """Count an optimiser step that was taken."""
        self._steps.append((loss, gradient_norm))

    def reduced(self, ranks: Ranks, seconds: float) -> dict[str, float]:
        """Return all metrics over all learners, the same on each; means over nothing are 0.

        The names are those of :class:`LossMetrics`. ``mismatch*`` is measured before the first step only: after it, the
        difference between learner and engine is what was learned.
        """
        table = torch.stack(self._rows).cpu() if self._rows else torch.zeros(0, len(_NAMES) + 1, dtype=torch.float64)
        loss = _combined(table, ranks)
        before = _combined(table[: self._num_rows_before_steps], ranks).averages()
        entropy, tokens, rows = ranks.sum([float(table[:, -1].sum()), self._num_tokens_computed, len(table)])
        slowest = ranks.max([seconds])[0]
        total_loss, gradient_norm = (sum(column) / len(column) for column in zip(*self._steps or [(0.0, 0.0)], strict=True))
        return {
            **loss.averages(),
            **{name: before[name] for name in MISMATCH},
            "entropy": entropy / max(loss.num_on_policy_tokens, 1.0),
            "total_loss": total_loss,
            "gradient_norm": gradient_norm,
            "num_steps": len(self._steps),
            "num_skipped_steps": self.num_skipped_steps,
            "num_micro_batches": rows,
            "num_tokens_computed": tokens,
            "seconds": slowest,
            "tokens_per_s": tokens / slowest if slowest else 0.0,
        }


def _combined(table: torch.Tensor, ranks: Ranks) -> LossMetrics:
    """Combine the micro-batches of all learners, ``[rows, fields + 1]`` on the CPU: sums are added, maxima stay maxima."""
    whole = torch.cat([table.new_zeros(1, table.shape[1]), table])  # the metrics of no token are 0
    both = zip(_NAMES, ranks.sum(whole.sum(0).tolist()), ranks.max(whole.amax(0).tolist()), strict=False)
    chosen = {name: largest if name.endswith("_max") else total for name, total, largest in both}
    return LossMetrics(**{name: torch.tensor(value, dtype=torch.float64) for name, value in chosen.items()})
