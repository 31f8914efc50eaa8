"""Weights from a GPU to another process of the machine: packed on the host, pinned memory, CUDA IPC; bytes a second."""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from gpu_parts.machine import Sizes, seconds, twice, wait
from rapo_rllib.weights.packing import pack_weights, unpack_weights

TENSORS = 16


def measured(sizes: Sizes) -> dict[str, Any]:
    """Each way with all bytes, from the source's tensors to tensors on the receiver's device."""
    count = sizes.copied_bytes // 2 // TENSORS
    weights = {f"weight {index}": torch.ones(count, dtype=torch.bfloat16, device=sizes.device) for index in range(TENSORS)}
    total = sum(tensor.nbytes for tensor in weights.values())
    found: dict[str, Any] = {"bytes": total, "packed on the host, bytes/s": _packed(weights, total, sizes.device)}
    if sizes.device != "cuda":
        word = {"skipped": "no CUDA device"}
        return {**found, "pinned memory, bytes/s": word, "CUDA IPC, bytes/s": word}
    return {**found, "pinned memory, bytes/s": _pinned(weights, total), "CUDA IPC, bytes/s": _ipc(weights, total)}


def _packed(weights: dict[str, torch.Tensor], total: int, device: str) -> list[float]:
    """Packed and copied to the device, as ``weight_transfer: object_store`` does."""

    def work() -> None:
        for tensor in unpack_weights(pack_weights(weights.items())).values():
            tensor.to(device, copy=True)

    return twice(lambda: total / seconds(work, device, 1))


def _pinned(weights: dict[str, torch.Tensor], total: int) -> list[float]:
    """Through pinned memory of a sixteenth, there and back."""
    host = torch.empty_like(next(iter(weights.values())), device="cpu", pin_memory=True)
    target = torch.empty_like(next(iter(weights.values())))

    def work() -> None:
        for tensor in weights.values():
            host.copy_(tensor, non_blocking=True)
            target.copy_(host, non_blocking=True)

    return twice(lambda: total / seconds(work, "cuda", 1))


def _ipc(weights: dict[str, torch.Tensor], total: int) -> list[float]:
    """A second process of the same GPU copies them, and answers when it has."""
    context = multiprocessing.get_context("spawn")
    handed, done = context.Queue(), context.Queue()
    receiver = context.Process(target=_receive, args=(handed, done), daemon=True)
    receiver.start()
    try:
        return twice(lambda: total / seconds(lambda: (handed.put(weights), done.get(timeout=300)), "cuda", 1))
    finally:
        handed.put(None)
        receiver.join(timeout=60)


def _receive(handed: Any, done: Any) -> None:
    while (weights := handed.get()) is not None:
        copies = [tensor.clone() for tensor in weights.values()]
        wait("cuda")
        del weights, copies
        done.put(True)
