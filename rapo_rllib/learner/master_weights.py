"""AdamW for bfloat16 weights that steps on float32 copies of them.

At usual learning rates a step is smaller than the distance between neighbouring bfloat16 numbers, and would be rounded away. So
the optimiser holds a float32 master of every weight, and rounds it into the model's weight after each step.

    backward --bfloat16 gradient of a micro-batch--> added up in float32 at the master --AdamW--> master --rounded--> weight
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

MASTERS = "masters"  # in the optimiser's state


class MasterWeightAdamW(torch.optim.AdamW):
    """AdamW whose parameter groups hold float32 masters; a hook moves each weight's gradient to its master."""

    def __init__(self, weights: Sequence[torch.Tensor], **options: Any) -> None:
        self._weights = list(weights)
        self._masters = [torch.nn.Parameter(weight.detach().float()) for weight in self._weights]
        for weight, master in zip(self._weights, self._masters, strict=True):
            weight.register_post_accumulate_grad_hook(partial(_move_gradient, master))
        super().__init__(self._masters, **options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on the masters, and round them into the weights.

        A weight that differs from its rounded master was written since (for example by a restored state): the master takes
        its value. The device decides that number by number: a check of whole weights would wait for the device at each.
        """
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.copy_(torch.where(weight == master.to(weight.dtype), master, weight.to(master.dtype)))
        result = super().step(closure)
        for weight, master in zip(self._weights, self._masters, strict=True):
            weight.copy_(master)
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return AdamW's state, with the masters."""
        return {**super().state_dict(), MASTERS: [master.detach() for master in self._masters]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load AdamW's state and the masters; if the state has no masters, they follow the weights at the next step."""
        super().load_state_dict(state_dict)
        for master, value in zip(self._masters, state_dict.get(MASTERS, self._masters), strict=True):
            master.copy_(value)


def _move_gradient(master: torch.Tensor, weight: torch.Tensor) -> None:
    assert weight.grad is not None
    if master.grad is None:
        master.grad = weight.grad.float()
    else:
        master.grad += weight.grad
    weight.grad = None
