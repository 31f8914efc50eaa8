"""Judges whether a job fits its machine and its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapo_rllib.estimate.layout import Process, peak
from rapo_rllib.estimate.memory import Parts

ERROR = 0.15  # of an estimate, either way: benchmarks/RESULTS.md
GIB = 2**30
ADVICE = (  # the least loss first
    "; what makes it less: engine.sleep, model.gradient_checkpointing: true, a smaller max_tokens_per_micro_batch, "
    "learner_parallelism: fsdp over more learners, model.lora; for an engine a larger tensor_parallel_size"
)
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # cgroup 2 and 1


@dataclass(frozen=True)
class Machine:
    """Memory and GPUs that are there; None: not known from here."""

    host_bytes: int | None
    gpu_bytes: int | None  # of the smallest GPU
    gpus: int | None


def verdict(where: str, needed: float, there: float | None, unit: str = "GiB") -> dict[str, Any]:
    """Compare a need of the job with what is there, in bytes or GPUs; ``fits`` is None if that is unknown.

    Returns:
        The arguments, ``fits``, and ``text`` for people.
    """
    scale = GIB if unit == "GiB" else 1
    fits, said = None if there is None else needed <= there, f"{where}: needs {needed / scale:.3g} {unit}"
    if there is None:
        text = f"{said}; what there is, is not known from here"
    else:
        close = unit == "GiB" and needed <= there < needed * (1 + ERROR)
        told = "fits, but closer than this estimate's error" if close else "fits" if fits else "does not fit"
        text = f"{told}: {said}, {there / scale:.3g} {unit} there" + (ADVICE if not fits and "GPU of" in where else "")
    return {"where": where, "needed": needed, "there": there, "unit": unit, "fits": fits, "text": text}


def this_machine() -> Machine:
    """Ask the operating system, the container and CUDA."""
    import psutil
    import torch

    limits = [text for file in _LIMITS if file.is_file() and (text := file.read_text(encoding="utf-8").strip()).isdigit()]
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in gpus]
    return Machine(min([psutil.virtual_memory().total, *map(int, limits)]), min(sizes, default=None), len(sizes))


def fits(found: list[Process], machine: Machine) -> list[dict[str, Any]]:
    """Judge the processes of a trial on a machine, by each kind of memory.

    All peaks on the host are added up, though they seldom come together. Processes with a fraction of a GPU share one, as many
    as there is room for.
    """
    verdicts = [verdict("memory of all processes", sum(one.count * peak(one.host) for one in found), machine.host_bytes)]
    if wanted := sum(one.count * one.gpus for one in found):
        verdicts.append(verdict("GPUs", wanted, machine.gpus, "GPUs"))
    verdicts += [verdict(f"memory of a GPU of: {one.name}", peak(one.gpu), machine.gpu_bytes) for one in found if one.gpus >= 1]
    if sharing := [one for one in found if 0 < one.gpus < 1]:
        together: Parts = ()
        room = 1.0
        for one in sharing:
            beside = min(one.count, int(room / one.gpus + 1e-9))
            together, room = together + beside * one.gpu, room - beside * one.gpus
        names = " and ".join(one.name for one in sharing)
        verdicts.append(verdict(f"memory of a GPU of: {names}", peak(together), machine.gpu_bytes))
    return verdicts
