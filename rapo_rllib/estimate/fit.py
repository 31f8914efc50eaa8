"""Judges whether a job fits its machine and its GPUs, and finds what to change where it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from rapo_rllib.estimate.layout import Job, job_of, peak, processes, shared
from rapo_rllib.estimate.memory import Parts
from rapo_rllib.settings import LoraSettings, Settings

ERROR = 0.15  # of an estimate, either way: benchmarks/RESULTS.md
GIB = 2**30
MOST_CHANGES = 3  # of a job that does not fit
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # cgroup 2 and 1

Keys = dict[str, Any]  # of a job, and their new values


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
    remedy: str = ""  # what to change where it does not fit

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
        return f"{verdict}: {needed}, {self.there / scale:.3g} {self.unit} there{self.remedy and f'; {self.remedy}'}"


def this_machine() -> Machine:
    """Ask the operating system, the container and CUDA."""
    import psutil
    import torch

    limits = [text for file in _LIMITS if file.is_file() and (text := file.read_text(encoding="utf-8").strip()).isdigit()]
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in gpus]
    return Machine(min([psutil.virtual_memory().total, *map(int, limits)]), min(sizes, default=None), len(sizes))


def host_bytes(job: Job, trials: int = 1) -> int:
    """Add up all processes at their peaks, which seldom come together: a bound, where there is more than one."""
    each = sum(one.count * peak(one.host) for one in processes(job, None))
    return trials * each + sum(one.count * peak(one.host) for one in shared(job, trials))


def fits(job: Job, trials: int, machine: Machine) -> list[Fit]:
    """Judge so many trials at once on a machine, by each kind of memory; with a remedy where a GPU is too small."""
    verdicts = [Fit("memory of all processes", host_bytes(job, trials), machine.host_bytes)]
    if wanted := trials * sum(one.count * one.gpus for one in processes(job, None)):
        verdicts.append(Fit("GPUs", wanted, machine.gpus, "GPUs"))
    gpu = gpu_fits(job, machine.gpu_bytes)
    if machine.gpu_bytes and not all(fit.fits for fit in gpu):
        advice = remedy(job, machine.gpu_bytes)
        gpu = [fit if fit.fits else replace(fit, remedy=advice) for fit in gpu]
    return verdicts + gpu


def gpu_fits(job: Job, device: int | None) -> list[Fit]:
    """Judge each kind of GPU; processes with a fraction of one share it.

    Example: a learner and an engine of half a GPU each share one; of two learners and no engine both do.
    """
    found = processes(job, device)
    verdicts = [Fit(f"memory of a GPU of: {one.name}", peak(one.gpu), device) for one in found if one.gpus >= 1]
    parts = [one for one in found if 0 < one.gpus < 1]
    shared: Parts = ()
    room = 1.0
    for turn in range(max((one.count for one in parts), default=0)):
        for one in parts:
            if turn < one.count and one.gpus <= room + 1e-9:
                shared, room = shared + one.gpu, room - one.gpus
    if parts:
        verdicts.append(Fit(f"memory of a GPU of: {' and '.join(one.name for one in parts)}", peak(shared), device))
    return verdicts


def remedy(job: Job, device: int) -> str:
    """Find the fewest changes, the least loss first, that make a job fit GPUs of ``device`` bytes.

    Example: ``set model.gradient_checkpointing to True, and the fullest GPU holds 31.2 GiB``.
    """
    for number in range(1, MOST_CHANGES + 1):
        for chosen in combinations(changes(job.settings), number):
            keys = {key: value for change in chosen for key, value in change.items()}
            found = gpu_fits(job_of(with_keys(job.settings, keys), job.shape), device)
            if all(fit.fits for fit in found):
                told = " and ".join(f"{key} to {'{}' if key == 'model.lora' else value}" for key, value in keys.items())
                return f"set {told}, and the fullest GPU holds {max(fit.needed for fit in found) / GIB:.3g} GiB"
    return "nothing that is known here makes it fit: take larger GPUs, or a smaller model"


def changes(settings: Settings) -> list[Keys]:
    """List what a job can give up for memory, the least loss first."""
    engine, rllib, rollout, update = settings.engine, settings.rllib, settings.rollout, settings.update
    own_engine, learner = rllib.num_gpus_per_env_runner >= 1, bool(rllib.num_gpus_per_learner)
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    shards = rllib.num_learners if update.learner_parallelism == "fsdp" else 1
    every: list[tuple[bool, Keys]] = [
        (learner and 0 < rllib.num_gpus_per_env_runner < 1 and not engine.sleep, {"engine.sleep": True}),
        (own_engine and engine.gpu_memory_utilization < 0.9, {"engine.gpu_memory_utilization": 0.9}),
        *(
            (own_engine and n > engine.tensor_parallel_size, {"engine.tensor_parallel_size": n, "num_gpus_per_env_runner": n})
            for n in (2, 4, 8)
        ),
        (learner and settings.model.gradient_checkpointing is not True, {"model.gradient_checkpointing": True}),
        (learner and update.max_tokens_per_micro_batch > longest, {"max_tokens_per_micro_batch": longest}),
        *(
            (rllib.num_gpus_per_learner == 1 and n > shards, {"learner_parallelism": "fsdp", "num_learners": n})
            for n in (2, 4, 8, 16, 32)
        ),
        (learner and settings.model.lora is None, {"model.lora": LoraSettings()}),
    ]
    return [keys for possible, keys in every if possible]


def with_keys(settings: Settings, keys: Keys) -> Settings:
    """Give some keys other values. Example: ``{"engine.sleep": True, "num_learners": 2}``."""
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        section = section or ("update" if hasattr(settings.update, name) else "rllib")
        settings = replace(settings, **{section: replace(getattr(settings, section), **{name: value})})
    return settings
