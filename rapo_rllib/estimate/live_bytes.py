"""Counts the bytes of all tensors that are alive while PyTorch computes without data.

``FakeTensorMode`` runs a real forward and backward pass on tensors that have shapes, dtypes and lifetimes, and no memory. What
is counted here is what an allocator would have to give; what it wastes, and what kernels take for themselves, is not.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):
    """Inside, every new storage is counted until it is freed. Peaks are kept by ``phase``, which the caller sets.

    Args:
        known: tensors that are there already, and are not counted.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live = 0
        self.peaks: dict[str, int] = {}  # by phase
        self.phase = ""
        self._storages: Any = WeakIdKeyDictionary()
        for tensor in known:
            self._storages[tensor.untyped_storage()] = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what it made."""
        result = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._count, result)
        return result

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage not in self._storages:
            size = self._storages[storage] = storage.nbytes()
            weakref.finalize(storage, self._freed, size).atexit = False
            self.live += size
            self.peaks[self.phase] = max(self.live, self.peaks.get(self.phase, 0))
        return tensor

    def _freed(self, size: int) -> None:
        self.live -= size
