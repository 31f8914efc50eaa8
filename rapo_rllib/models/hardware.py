"""Find what this machine computes well: the precision behind ``dtype: auto``."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

# Without one of these a CPU emulates bfloat16, about five times slower than float32 (measured on an AVX2 machine).
_BF16_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}


@lru_cache(maxsize=1)
def preferred_dtype() -> str:
    """``"bfloat16"`` on CUDA and on CPUs that multiply it in hardware, else ``"float32"``."""
    import torch

    if torch.cuda.is_available():
        return "bfloat16"
    return "bfloat16" if _BF16_CPU_FLAGS & _cpu_flags() else "float32"


def resolved_dtype(dtype: str | None) -> str | None:
    """``dtype`` with ``auto`` replaced by what this machine computes well."""
    return preferred_dtype() if dtype == "auto" else dtype


def _cpu_flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return set()
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split(":", 1)[1].split()}


def return_free_memory() -> None:
    """Give memory that was freed back to the operating system, and to the other processes on the GPU.

    PyTorch keeps freed GPU memory for itself, and an engine that shares the device could not wake up beside it. On the host, a
    process whose learner and engine take turns would hold the holes that each left in the heap: 1 to 2 GB with a model of 135 M
    parameters. Takes about 0.1 s. Of the C libraries only glibc can.
    """
    import ctypes

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
