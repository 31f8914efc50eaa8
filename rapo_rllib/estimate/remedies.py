"""What to change in a job that does not fit its GPUs: each change is estimated, and only what fits is advised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rapo_rllib.estimate.fit import GIB, gpu_fits
from rapo_rllib.estimate.layout import Job, job_of, processes
from rapo_rllib.settings import LoraSettings, Settings

Keys = dict[str, Any]  # of a job, and their new values
_SECTIONS = ("update", "rllib")  # of the settings that flat keys belong to


def remedy(job: Job, device: int) -> str:
    """The first change that makes the job fit GPUs of ``device`` bytes; else several of them, those that are needed.

    Example: ``set model.gradient_checkpointing to True, and the fullest GPU holds 31.2 GiB``.
    """
    jobs = [job]  # that were estimated: passes of the same row are not run again
    each = list(changes(job.settings))
    for change in each:
        if _needed(jobs, change, device) is not None:
            return _told(jobs, change, device)
    together: Keys = {}
    for change in each:
        together = {**together, **change}
        if _needed(jobs, together, device) is not None:
            break
    else:
        return f"no change of {', '.join(together) or 'keys'} makes it fit: take larger GPUs, or a smaller model"
    for change in each:
        rest = {key: value for key, value in together.items() if key not in change}
        if _needed(jobs, rest, device) is not None:
            together = rest
    return _told(jobs, together, device)


def changes(settings: Settings) -> Iterator[Keys]:
    """What a job can give up for memory, the least loss first."""
    yield from _of_engine(settings)
    if settings.rllib.num_gpus_per_learner:
        yield from _of_learner(settings)


def with_keys(settings: Settings, keys: Keys) -> Settings:
    """``settings`` with other values of some keys.

    Example: ``{"engine.sleep": True, "num_learners": 2}``.
    """
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        section = section or next(one for one in _SECTIONS if hasattr(getattr(settings, one), name))
        settings = replace(settings, **{section: replace(getattr(settings, section), **{name: value})})
    return settings


def _of_engine(settings: Settings) -> Iterator[Keys]:
    engine, gpus = settings.engine, settings.rllib.num_gpus_per_env_runner
    if not gpus:
        return
    if gpus < 1:
        if settings.rllib.num_gpus_per_learner and not engine.sleep:
            yield {"engine.sleep": True}
        return
    if engine.gpu_memory_utilization < 0.9:
        yield {"engine.gpu_memory_utilization": 0.9}
    for workers in (2, 4, 8):
        if workers > engine.tensor_parallel_size:
            yield {"engine.tensor_parallel_size": workers, "num_gpus_per_env_runner": workers}


def _of_learner(settings: Settings) -> Iterator[Keys]:
    model, update, rllib, rollout = settings.model, settings.update, settings.rllib, settings.rollout
    if model.gradient_checkpointing is not True:
        yield {"model.gradient_checkpointing": True}
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    if update.max_tokens_per_micro_batch > longest:
        yield {"max_tokens_per_micro_batch": longest}
    shards = rllib.num_learners if update.learner_parallelism == "fsdp" else 1
    for learners in (2, 4, 8, 16, 32):
        if rllib.num_gpus_per_learner == 1 and learners > shards:
            yield {"learner_parallelism": "fsdp", "num_learners": learners}
    if model.lora is None:
        yield {"model.lora": LoraSettings()}


def _needed(jobs: list[Job], keys: Keys, device: int) -> int | None:
    """Bytes of the fullest GPU; None: it does not fit. The estimated job joins ``jobs``."""
    jobs.append(job_of(with_keys(jobs[0].settings, keys), jobs))
    found = gpu_fits(processes(jobs[-1], device), device)
    return int(max(fit.needed for fit in found)) if all(fit.fits for fit in found) else None


def _told(jobs: list[Job], keys: Keys, device: int) -> str:
    written = {key: "{}" if isinstance(value, LoraSettings) else value for key, value in keys.items()}
    changed = " and ".join(f"{key} to {value}" for key, value in written.items())
    return f"set {changed}, and the fullest GPU holds {(_needed(jobs, keys, device) or 0) / GIB:.3g} GiB"
