"""A step of the Step-Trace Buffer preferred to the policy's own: StepAgent's implicit form, as advantages (docs/credit.md).

    log π / π_ref of both steps of each pair --preference_advantages--> what is added to the advantages of their tokens

Shapes: ``N`` loss tokens, of any number of pairs; both steps of a pair are among them.
"""

from __future__ import annotations

import torch


def preference_margins(pairs: torch.Tensor, log_ratios: torch.Tensor, beta: float) -> torch.Tensor:
    """How much more the policy has learned to write the buffer's step than its own, for each pair.

        Δ_p = β [ Σ_{t ∈ e_p} log(π / π_ref)_t - Σ_{t ∈ a_p} log(π / π_ref)_t ]

    Args:
        pairs: int64 ``[N]``: ``p`` on tokens of the buffer's step e of pair p (from 1 on), ``-p`` on those of the policy's own
            step a, 0 elsewhere.
        log_ratios: log π - log π_ref, ``[N]``, nats; read where ``pairs`` is not 0.
        beta: β of DPO, per nat.

    Returns:
        Δ, float64 ``[P + 1]`` for pairs numbered up to P; index 0 is no pair's, and 0.
    """
    count = int(pairs.abs().max()) + 1 if len(pairs) else 1
    signed = torch.where(pairs == 0, torch.zeros_like(log_ratios), pairs.sign() * log_ratios).double()
    return beta * signed.new_zeros(count).index_add(0, pairs.abs(), signed)


def preference_advantages(pairs: torch.Tensor, margins: torch.Tensor) -> torch.Tensor:
    """Advantages whose policy gradient is that of DPO on each pair, divided by -β.

        L_p = -log σ(Δ_p),   -∇L_p / β = σ(-Δ_p) [ Σ_{t ∈ e_p} ∇log π_t - Σ_{t ∈ a_p} ∇log π_t ]
        A_t = σ(-Δ_p) on the buffer's step, -σ(-Δ_p) on the policy's own, 0 elsewhere

    The loss is the implicit form of StepAgent (arXiv 2411.03817), step-wise DPO. That its weights are read once an update, at
    its beginning, and that the ratio is clipped behind it as any other, is ours.

    Args:
        pairs: as in :func:`preference_margins`.
        margins: Δ, ``[P + 1]``.

    Returns:
        A, float32 ``[N]``. Example: Δ = 0, as at the start of training: 0.5 and -0.5.
    """
    return (pairs.sign() * torch.sigmoid(-margins)[pairs.abs()]).float()
