"""The optimiser's state as numpy, for checkpoints: RLlib's own conversion has no bfloat16."""

from __future__ import annotations

from typing import Any

import torch

from rapo_rllib.weights.packing import pack_weights, unpack_weights


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Moments and step counts as packed tensors named ``<parameter index>/<entry>``, and the parameter groups as they are."""
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
