"""From per-token objectives to one number (ALGORITHM sections 8, 9): the weight of a token in the sum over a batch.

A weight is a trajectory's own, known before the batch is cut into minibatches, shards and rows; so parts are summed, and how
they were cut does not change the loss.
"""

from __future__ import annotations

LOSS_AGGREGATIONS = ("trajectory", "token")


def aggregation_weight(num_tokens: int, group_size: int, num_groups: int, total_tokens: int, mode: str) -> float:
    """Weight of each generated token of one trajectory in the mean over a batch.

        trajectory (eq. 11):          w = 1 / (nᵢ · G · Q)
        token (released code, DAPO):  w = 1 / Σᵢ nᵢ

    Over a batch the weights sum to 1; less where trajectories have no token, whose share is lost.

    Args:
        num_tokens: nᵢ, generated tokens of the trajectory.
        group_size: G, trajectories of its group.
        num_groups: Q, groups of the batch.
        total_tokens: Σᵢ nᵢ, generated tokens of the batch.
        mode: ``loss_aggregation`` of the configuration.

    Returns:
        w; 0 for a trajectory without generated tokens.

    Raises:
        ValueError: ``mode`` is not known.
    """
    if mode not in LOSS_AGGREGATIONS:
        raise ValueError(f"loss_aggregation must be one of {', '.join(LOSS_AGGREGATIONS)}; got {mode!r}")
    if num_tokens == 0:
        return 0.0
    return 1 / (num_tokens * group_size * num_groups) if mode == "trajectory" else 1 / total_tokens
