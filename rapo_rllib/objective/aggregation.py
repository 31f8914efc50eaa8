"""From per-token objectives to one number (algorithm.md sections 8, 9, 11): the weight of a token in the sum over a batch.

A weight is a trajectory's own, known before the batch is cut into minibatches, shards and rows; so parts are summed, and how
they were cut does not change the loss.
"""

from __future__ import annotations


def aggregation_weight(
    num_tokens: int, group_size: int, num_groups: int, total_tokens: int, mode: str, length: int | None = None
) -> float:
    """Weight of each trained token of one trajectory in the mean over a batch.

        trajectory (eq. 11):          w = 1 / (nᵢ · G · Q)
        token (released code, DAPO):  w = 1 / Σᵢ nᵢ
        constant (Dr. GRPO):          w = 1 / (L · G · Q)

    By trajectory and by token the weights of a batch sum to 1; less where trajectories have no token, whose share is lost. By
    the constant they sum to the mean length as a share of L: a long trajectory counts more, and no token counts less for
    standing in one. (arXiv 2503.20783: division by the own length favours short right answers and long wrong ones.)

    Args:
        num_tokens: nᵢ, trained tokens of the trajectory.
        group_size: G, trajectories of its group.
        num_groups: Q, groups of the batch.
        total_tokens: Σᵢ nᵢ, trained tokens of the batch.
        mode: ``loss_aggregation`` of the configuration.
        length: L, the same for all; read by ``constant`` only.

    Returns:
        w; 0 for a trajectory without trained tokens.

    Raises:
        ValueError: ``mode`` is ``constant``, without a positive ``length``.
    """
    if mode == "constant" and not length:
        raise ValueError(f"loss_aggregation 'constant' divides by a length: got {length}, expected a positive number")
    if num_tokens == 0:
        return 0.0
    trajectories = group_size * num_groups
    return 1 / {"trajectory": num_tokens * trajectories, "token": total_tokens, "constant": (length or 1) * trajectories}[mode]
