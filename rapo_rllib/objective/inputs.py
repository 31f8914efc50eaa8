"""Inputs of the loss: numbers of each token that is trained."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch


@dataclass(frozen=True)
class LossInputs:
    """Per-token tensors ``[N]`` of one micro-batch. Raises ``ValueError`` if their shapes differ.

    Example, two tokens of one trajectory with advantage 1.5 that retrieved nothing: ``advantages=[1.5, 1.5]``,
    ``retrieved_share=[0, 0]``, ``weights=[0.5, 0.5]``.
    """

    logprobs: torch.Tensor  # log π_θ, nats; the only one with a gradient
    old_logprobs: torch.Tensor  # log π_old, nats; see ``loss.py``
    advantages: torch.Tensor  # A (eq. 10)
    retrieved_share: torch.Tensor  # F_ret of the token's trajectory
    weights: torch.Tensor  # share in the mean over the batch (aggregation_weight); 0: masked
    rollout_logprobs: torch.Tensor | None = None  # log π_engine, nats; None: no truncated weight, no mismatch
    reference_logprobs: torch.Tensor | None = None  # log π_ref, nats; None: no KL term
    trajectory_ids: torch.Tensor | None = None  # int64 in [0, N), whole trajectories; None: level token only
    off_policy: torch.Tensor | None = None  # bool, tokens that another policy wrote; None: no token

    def __post_init__(self) -> None:
        expected = self.logprobs.shape
        for name, values in self.given().items():
            if values.shape != expected:
                raise ValueError(f"{name}: got shape {list(values.shape)}, expected that of logprobs, {list(expected)}")

    def given(self) -> dict[str, torch.Tensor]:
        """Map names to tensors, without the inputs that are None."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
