"""This machine: memory of host and GPUs, cores."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # cgroup 2 and 1


@dataclass(frozen=True)
class Machine:
    """Bytes and counts."""

    host_bytes: int  # of memory, or of what a container may use of it
    free_bytes: int  # of it, now
    cores: int
    gpu_bytes: tuple[int, ...] = ()  # memory of each GPU


def this_machine() -> Machine:
    """Asked of the operating system and of CUDA; nothing is allocated."""
    import psutil
    import torch

    memory = psutil.virtual_memory()
    host = min([memory.total, *_container_limits()])
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    sizes = tuple(int(torch.cuda.get_device_properties(index).total_memory) for index in gpus)
    return Machine(host, min(host, memory.available), len(os.sched_getaffinity(0)), sizes)


def _container_limits() -> list[int]:
    found = []
    for file in _LIMITS:
        try:
            found.append(int(file.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return found
