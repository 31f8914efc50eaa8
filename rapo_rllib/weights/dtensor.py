"""Conversion between whole tensors and shards, for weights that may be sharded over several learners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a tensor from all learners if it is sharded (all must call this then); else return it as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copied(state: Any) -> Any:
    """Copy all tensors in nested dicts and lists to the CPU, sharded ones gathered; other values stay as they are."""
    if isinstance(state, torch.Tensor):
        return full_tensor(state).to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return [copied(value) for value in state] if isinstance(state, list) else state


@contextmanager
def gathered(named: Mapping[str, torch.Tensor]) -> Iterator[Iterable[tuple[str, torch.Tensor]]]:
    """Yield pairs of name and whole tensor, gathered one after the other, so that at most one is held twice.

    When the block ends, also by an error, the pairs that are left are gathered: the other learners wait for every tensor.
    """
    pairs = ((name, full_tensor(tensor)) for name, tensor in named.items())
    try:
        yield pairs
    finally:
        for _ in pairs:
            pass


def shard_like(tensor: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Shard a whole tensor as ``own`` is sharded, in the dtype and on the device of ``own``, without communication."""
    tensor = tensor.to(own.device, own.dtype)
    if not isinstance(own, DTensor):
        return tensor
    shard = distribute_tensor(tensor, own.device_mesh, own.placements, src_data_rank=None)
    return shard.clone()  # a view would keep the whole tensor
