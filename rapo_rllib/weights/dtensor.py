"""Whole tensors and shards of them, for weights that may be sharded over several learners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, gathered from all learners if it is sharded; then all must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copied(state: Any) -> Any:
    """Copy the tensors in dicts and lists, whole, to the CPU; everything else stays as it is."""
    if isinstance(state, torch.Tensor):
        return full_tensor(state).to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return [copied(value) for value in state] if isinstance(state, list) else state


@contextmanager
def gathered(named: Mapping[str, torch.Tensor]) -> Iterator[Iterable[tuple[str, torch.Tensor]]]:
    """Gather names and whole tensors, one after the other, so that at most one is held twice.

    What the block leaves is gathered when it ends, also by an error: the other learners wait for every tensor.
    """
    pairs = ((name, full_tensor(tensor)) for name, tensor in named.items())
    try:
        yield pairs
    finally:
        for _ in pairs:
            pass


def shard_like(tensor: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Shard a whole tensor as ``own`` is, in its dtype, on its device. Communicates nothing."""
    tensor = tensor.to(own.device, own.dtype)
    if not isinstance(own, DTensor):
        return tensor
    shard = distribute_tensor(tensor, own.device_mesh, own.placements, src_data_rank=None)
    return shard.clone()  # a view would keep the whole tensor
