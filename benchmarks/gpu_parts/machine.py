"""Holds sizes, facts of the machine, and the clock."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import packages_distributions, version
from typing import Any

import torch

REPEATS = 2  # of every figure
# Dense bfloat16 operations a second, by part of the device's name; source: NVIDIA's data sheets
PEAKS = {"H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}


@dataclass(frozen=True)
class Shape:
    """A decoder of Qwen's or Llama's kind by size."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = True


SHAPES = {
    "1.5b": Shape(1536, 8960, 28, 12, 2, 151_936),
    "3b": Shape(2048, 11_008, 36, 16, 2, 151_936),
    "7b": Shape(3584, 18_944, 28, 28, 4, 152_064, tied=False),
    "tiny": Shape(64, 128, 2, 4, 2, 320),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of all parts."""

    is_small: bool = False
    vocabulary: int = 152_064
    batches: tuple[int, ...] = (64, 256, 512)
    steps: int = 20  # of sampling, timed together
    shapes: tuple[str, ...] = ("1.5b", "3b")
    rows: tuple[int, ...] = (8192, 16_384)  # tokens
    states_shape: str = "7b"
    copied_bytes: int = 15 * 10**9
    device: str = field(default_factory=lambda: "cuda" if torch.cuda.is_available() else "cpu")

    @classmethod
    def small(cls) -> Sizes:
        """For a test of the benchmark itself."""
        return cls(True, 512, (2, 4), 2, ("tiny",), (300, 600), "tiny", 4 * 2**20)

    def with_choice(self, shapes: list[str] | None, rows: list[int] | None) -> Sizes:
        """Other shapes and rows than these."""
        return replace(self, shapes=tuple(shapes or self.shapes), rows=tuple(rows or self.rows))


def machine(sizes: Sizes) -> dict[str, Any]:
    """Where the figures come from, and how fast it multiplies and copies."""
    cuda, found = sizes.device == "cuda", packages_distributions()
    name = torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine()
    return {
        "device": name,
        "memory_gib": torch.cuda.get_device_properties(0).total_memory / 2**30 if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        **{name: version(found[name][0]) for name in ("transformers", "vllm", "ray") if name in found},
        "peak_flops": peak_flops(name),
        "gemm_flops": twice(lambda: gemm_flops(sizes)),
        "copy_bytes_per_s": twice(lambda: copy_rate(sizes)),
    }


def peak_flops(name: str) -> float | None:
    """Look up the data sheet's figure for bfloat16; None: not known."""
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def gemm_flops(sizes: Sizes) -> float:
    """Operations a second of a bfloat16 product."""
    edge = 256 if sizes.device == "cpu" else 8192
    return product_flops(edge, edge, edge, torch.bfloat16, sizes.device)


def product_flops(rows: int, inner: int, columns: int, dtype: torch.dtype, device: str) -> float:
    """Operations a second of a product ``[rows, inner] x [inner, columns]``."""
    left, right = (torch.randn(*size, device=device, dtype=dtype) for size in ((rows, inner), (inner, columns)))
    return 2 * rows * inner * columns / seconds(lambda: left @ right, device)


def copy_rate(sizes: Sizes) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    source = torch.ones(sizes.copied_bytes // 8, dtype=torch.float32, device=sizes.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), sizes.device)


def twice(measure: Callable[[], Any]) -> list[Any]:
    """The figure, ``REPEATS`` times."""
    return [measure() for _ in range(REPEATS)]


def seconds(work: Callable[[], Any], device: str, count: int = 5) -> float:
    """Time a call, all that it queues on the device included, after a first one that does not count."""
    work()
    wait(device)
    start = time.perf_counter()
    for _ in range(count):
        work()
    wait(device)
    return (time.perf_counter() - start) / count


def wait(device: str) -> None:
    """Until the device has done all that is queued."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak_bytes(device: str, work: Callable[[], Any]) -> int | None:
    """Most memory that tensors held in ``work``; None where nobody counts."""
    if device != "cuda":
        work()
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    wait(device)
    return torch.cuda.max_memory_allocated()
