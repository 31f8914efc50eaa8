"""Metrics of an update, combined over micro-batches, optimiser steps and learners.

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
    """Metrics of one update; the numbers stay on the device, detached, until :meth:`reduced` reads all of them at once."""

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []  # per micro-batch: [fields of LossMetrics, sum of entropies]
        self._num_rows_before_steps = 0
        self._num_tokens_computed = 0
        self._steps: list[tuple[float, float]] = []  # loss and gradient norm of each step that was taken
        self.num_skipped_steps = 0  # steps not taken, because loss or gradient was not finite

    def add_row(self, num_tokens: int, entropies: torch.Tensor, loss: LossMetrics) -> None:
        """Add the metrics of one micro-batch; nothing is read from the device.

        Args:
            num_tokens: that the learner computed.
            entropies: ``[N]`` of the micro-batch's loss tokens, nats; 0 for off-policy tokens, which the mean leaves out.
            loss: the loss metrics of the micro-batch.
        """
        numbers = [*(getattr(loss, name) for name in _NAMES), entropies.double().sum()]
        self._rows.append(torch.stack([number.detach().double() for number in numbers]))
        self._num_rows_before_steps += not self._steps
        self._num_tokens_computed += num_tokens

    def add_step(self, loss: float, gradient_norm: float) -> None:
        """Add the loss and gradient norm of an optimiser step that was taken."""
        self._steps.append((loss, gradient_norm))

    def reduced(self, ranks: Ranks, seconds: float) -> dict[str, float]:
        """Combine the metrics of all learners; all get the same result. A mean over nothing is 0.

        Metrics of the loss are named by :meth:`LossMetrics.averages`. ``mismatch*`` is measured before the first step only:
        afterwards, learner and engine also differ by what was learned.
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
    """Combine all learners' micro-batches, ``[rows, fields + 1]`` on the CPU: sums are added, the largest maximum is kept."""
    whole = torch.cat([table.new_zeros(1, table.shape[1]), table])  # so that a maximum over no rows is 0
    both = zip(_NAMES, ranks.sum(whole.sum(0).tolist()), ranks.max(whole.amax(0).tolist()), strict=False)
    chosen = {name: largest if name.endswith("_max") else total for name, total, largest in both}
    return LossMetrics(**{name: torch.tensor(value, dtype=torch.float64) for name, value in chosen.items()})
