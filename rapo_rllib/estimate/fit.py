"""Judges whether a job fits its machine and its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Fit:
    """A need of the job against what is there."""

    where: str  # for people
    needed: float  # bytes, or GPUs
    there: float | None  # None: not known here
    unit: str = "GiB"

    @property
    def fits(self) -> bool | None:
        """None: nobody knows."""
        return None if self.there is None else self.needed <= self.there

    def __str__(self) -> str:
        scale = GIB if self.unit == "GiB" else 1
        needed = f"{self.where}: needs {self.needed / scale:.3g} {self.unit}"
        if self.there is None:
            return f"{needed}; what there is, is not known from here"
        close = self.unit == "GiB" and self.needed <= self.there < self.needed * (1 + ERROR)
        verdict = "fits, but closer than this estimate's error" if close else "fits" if self.fits else "does not fit"
        advice = ADVICE if not self.fits and "GPU of" in self.where else ""
        return f"{verdict}: {needed}, {self.there / scale:.3g} {self.unit} there{advice}"


def this_machine() -> Machine:
    """Ask the operating system, the container and CUDA."""
    import psutil
    import torch

    limits = [text for file in _LIMITS if file.is_file() and (text := file.read_text(encoding="utf-8").strip()).isdigit()]
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in gpus]
    return Machine(min([psutil.virtual_memory().total, *map(int, limits)]), min(sizes, default=None), len(sizes))


def fits(found: list[Process], machine: Machine) -> list[Fit]:
    """Judge the processes of a trial on a machine, by each kind of memory.

    All peaks on the host are added up, though they seldom come together. Processes with a fraction of a GPU share one, as many
    as there is room for.
    """
    verdicts = [Fit("memory of all processes", sum(one.count * peak(one.host) for one in found), machine.host_bytes)]
    if wanted := sum(one.count * one.gpus for one in found):
        verdicts.append(Fit("GPUs", wanted, machine.gpus, "GPUs"))
    verdicts += [Fit(f"memory of a GPU of: {one.name}", peak(one.gpu), machine.gpu_bytes) for one in found if one.gpus >= 1]
    if sharing := [one for one in found if 0 < one.gpus < 1]:
        together: Parts = ()
        room = 1.0
        for turn in range(max(one.count for one in sharing)):
            for one in sharing:
                if turn < one.count and one.gpus <= room + 1e-9:
                    together, room = together + one.gpu, room - one.gpus
        names = " and ".join(one.name for one in sharing)
        verdicts.append(Fit(f"memory of a GPU of: {names}", peak(together), machine.gpu_bytes))
    return verdicts
