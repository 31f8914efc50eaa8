"""Does a job fit the machine: sums over processes, trials and GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rapo_rllib.estimate.machine import Machine
from rapo_rllib.estimate.parts import Memory, Process

ERROR = 0.15  # of an estimate, either way: benchmarks/RESULTS.md
GIB = 2**30


@dataclass(frozen=True)
class Fit:
    """One kind of memory against what there is."""

    where: str  # for people: this machine's memory, each GPU, GPUs
    needed: float  # bytes, or GPUs
    there: float | None  # None: not known here
    unit: str = "GiB"
    remedy: str = ""  # what to change where it does not fit

    @property
    def fits(self) -> bool | None:
        """None: nobody knows."""
        return None if self.there is None else self.needed <= self.there

    def __str__(self) -> str:
        scale = GIB if self.unit == "GiB" else 1
        needed = f"{self.needed / scale:.3g} {self.unit}"
        if self.there is None:
            return f"{self.where}: needs {needed}; what there is, is not known from here"
        there = f"{self.there / scale:.3g} {self.unit} there"
        if not self.fits:
            return f"does not fit: {self.where}: needs {needed}, {there}{self.remedy and f'; {self.remedy}'}"
        close = (
            ", but closer than this estimate's error" if self.unit == "GiB" and self.needed * (1 + ERROR) > self.there else ""
        )
        return f"fits{close}: {self.where}: needs {needed}, {there}"


def host_bytes(processes: Sequence[Process], once: Sequence[Process], trials: int) -> int:
    """Bytes of all processes at their peaks, which seldom come together: a bound, where there is more than one."""
    return trials * sum(process.count * process.host.peak for process in processes) + sum(p.host.peak for p in once)


def gpu_peaks(processes: Sequence[Process]) -> dict[str, int]:
    """Bytes of each kind of GPU, by what runs on it.

    Processes with a fraction of one share it, phase by phase: an engine may sleep in an update.
    Example: a learner and an engine of half a GPU each share one; of two learners and no engine both do.
    """
    found = {process.name: process.gpu.peak for process in processes if process.gpu is not None and process.gpus >= 1}
    parts = [process for process in processes if process.gpu and 0 < process.gpus < 1]
    shared, room = Memory(), 1.0
    for turn in range(max((process.count for process in parts), default=0)):
        for process in parts:
            if process.gpu and turn < process.count and process.gpus <= room + 1e-9:
                shared, room = shared.beside(process.gpu), room - process.gpus
    return {**found, " and ".join(process.name for process in parts): shared.peak} if parts else found


def num_gpus(processes: Sequence[Process], trials: int) -> float:
    """GPUs that all trials take."""
    return trials * sum(process.count * process.gpus for process in processes)


def trials_at_once(number: int, needed: dict[str, float], cores: float, gpus: float) -> int:
    """Trials that Ray runs at the same time: as many as the scarcest resource allows, at least one.

    Example: 4 trials of 2 CPUs each on 6 cores: 3.
    """
    there = {"CPU": cores, "GPU": gpus}
    room = [there[name] / amount for name, amount in needed.items() if amount and there.get(name)]
    return max(1, min([number, *(math.floor(limit) for limit in room)]))


def fits(
    processes: Sequence[Process], once: Sequence[Process], trials: int, machine: Machine, here: bool, device: int | None
) -> list[Fit]:
    """One verdict for each kind of memory.

    Args:
        processes: of one trial.
        once: what runs once.
        trials: at the same time.
        machine: this one.
        here: False where the job runs elsewhere, on machines that are not asked.
        device: bytes of a GPU; None: not known.
    """
    host = Fit("memory of this machine" if here else "memory of all machines", host_bytes(processes, once, trials), None)
    found = [replace(host, there=machine.host_bytes) if here else host]
    if wanted := num_gpus(processes, trials):
        found.append(Fit("GPUs", wanted, len(machine.gpu_bytes) if here else None, "GPUs"))
        found += gpu_fits(processes, device)
    return found


def gpu_fits(processes: Sequence[Process], device: int | None) -> list[Fit]:
    """Of each kind of GPU, and of the share of one that an engine may take."""
    found = [Fit(f"memory of a GPU of: {name}", peak, device) for name, peak in gpu_peaks(processes).items()]
    for process in processes:
        if process.gpu_least:
            share = None if device is None else process.gpu_share * device
            where = f"what {process.name} needs at least of its share of a GPU (engine.gpu_memory_utilization)"
            found.append(Fit(where, process.gpu_least, share))
    return found
