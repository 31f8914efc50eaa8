"""AdamW of bfloat16 weights that steps on float32 copies of them; and an optimiser's state as numpy.

At usual learning rates a step is smaller than the distance between neighbouring bfloat16 numbers, and would be rounded away. So
the optimiser holds a float32 master of every weight, and the model gets it rounded.

    backward --bfloat16 gradient of a micro-batch--> added up in float32 at the master --AdamW--> master --rounded--> weight
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from rapo_rllib.weights.packing import pack_weights, unpack_weights

MASTER = "master"  # its name among a parameter's entries in the optimiser's state


class MasterWeightAdamW(torch.optim.AdamW):
    """AdamW whose parameter groups hold float32 masters; gradients of the weights arrive there by themselves."""

    def __init__(self, weights: Sequence[torch.Tensor], **options: Any) -> None:
        self._weights = list(weights)
        self._masters = [torch.nn.Parameter(weight.detach().float()) for weight in self._weights]
        for weight, master in zip(self._weights, self._masters, strict=True):
            weight.register_post_accumulate_grad_hook(partial(_move_gradient, master))
        super().__init__(self._masters, **options)

    @property
    def masters(self) -> list[torch.nn.Parameter]:
        """The float32 copies, in the order of the weights."""
        return self._masters

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on the masters and round them into the weights.

        A weight that is not its master rounded was written by somebody else since (a state was restored, say): it is the truth.
        That is decided on the device, number by number: to ask for a whole weight would wait for the device, once for each.
        """
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.copy_(torch.where(weight == master.to(weight.dtype), master, weight.to(master.dtype)))
        result = super().step(closure)
        for weight, master in zip(self._weights, self._masters, strict=True):
            weight.copy_(master)
        return result

    def state_dict(self) -> dict[str, Any]:
        """AdamW's, with the masters among the entries of each parameter."""
        result = super().state_dict()
        state = {i: {**result["state"].get(i, {}), MASTER: master.detach()} for i, master in enumerate(self._masters)}
        return {**result, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse. A state without masters, of a run without them, leaves them to follow the weights."""
        entries = {index: dict(values) for index, values in state_dict["state"].items()}
        masters = {index: values.pop(MASTER) for index, values in entries.items() if MASTER in values}
        super().load_state_dict({**state_dict, "state": {index: values for index, values in entries.items() if values}})
        with torch.no_grad():
            for index, value in masters.items():
                self._masters[index].copy_(value)


def _move_gradient(master: torch.Tensor, weight: torch.Tensor) -> None:
    assert weight.grad is not None
    if master.grad is None:
        master.grad = weight.grad.float()
    else:
        master.grad += weight.grad
    weight.grad = None


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state for RLlib's checkpoints, whose own conversion has no bfloat16.

    Moments and step counts as packed tensors named ``<parameter index>/<entry>``, and the parameter groups as they are.
    """
    state = optimizer.state_dict()
    tensors = ((f"{index}/{entry}", value) for index, entries in state["state"].items() for entry, value in entries.items())
    return {"tensors": pack_weights(tensors), "param_groups": state["param_groups"]}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """The inverse of :func:`optimizer_state`; raises ``ValueError`` if the parameter groups don't match."""
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in unpack_weights(state["tensors"]).items():
        index, entry = name.split("/")
        entries.setdefault(int(index), {})[entry] = tensor
    optimizer.load_state_dict({"state": entries, "param_groups": state["param_groups"]})
