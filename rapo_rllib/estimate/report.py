"""The whole estimate of a job, as JSON and as tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from rapo_rllib.estimate.duration import FACTOR, Duration, measured_rates, passes_worth, rollout_seconds, update_seconds
from rapo_rllib.estimate.fit import GIB, Fit, fits, gpu_fits, host_bytes, trials_at_once
from rapo_rllib.estimate.layout import Job, job_of, once, processes
from rapo_rllib.estimate.machine import Machine
from rapo_rllib.estimate.parts import Memory, Process
from rapo_rllib.estimate.remedies import remedy
from rapo_rllib.settings import Settings


@dataclass(frozen=True)
class Estimate:
    """Of one experiment: its largest trial, and as many of them as run at once."""

    job: Job
    trials: int  # in all
    at_once: int
    processes: list[Process]  # of one trial
    once: list[Process]
    fits: list[Fit]
    durations: tuple[Duration, Duration] | None  # of an iteration, with few and with many tokens; None: GPUs
    iterations: int | None  # that the job stops after at the latest; None: not known

    @property
    def fits_all(self) -> bool | None:
        """False: something does not fit; None: nobody knows."""
        answers = [fit.fits for fit in self.fits]
        return False if False in answers else None if None in answers else True

    @property
    def host_bytes(self) -> int:
        """Of all processes."""
        return host_bytes(self.processes, self.once, self.at_once)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; memory in bytes, times in seconds."""
        job = self.job
        durations = None
        if self.durations is not None:
            durations = {"iteration_s": [one.iteration for one in self.durations], "error_factor": FACTOR}
            durations["job_s"] = (
                None if self.iterations is None else [self.iterations * one.iteration for one in self.durations]
            )
        return {
            "model": asdict(job.shape),
            "tokens": {**asdict(job.tokens), "usual_response": list(job.tokens.usual_responses), "row": job.row_tokens},
            "trials": self.trials,
            "trials_at_once": self.at_once,
            "processes": [_as_dict(process) for process in (*self.processes, *self.once)],
            "kv_bytes_per_token": job.engine.kv_per_token,
            "host_bytes": self.host_bytes,
            "fits": [{**asdict(fit), "fits": fit.fits, "text": str(fit)} for fit in self.fits],
            "time": durations,
        }


def estimate(
    found: list[Settings],
    trials: int,
    needed: dict[str, float],
    machine: Machine,
    *,
    here: bool,
    device: int | None = None,
    iterations: int | None = None,
) -> Estimate:
    """The estimate of the largest trial.

    Args:
        found: settings of every variant, checked.
        trials: of the experiment.
        needed: what one trial asks Ray for.
        machine: this one, with the cores that Ray is told of.
        here: whether the job runs on it alone.
        device: bytes of each GPU; None: those of this machine where the job runs here, else not known.
        iterations: that the job stops after.
    """
    if device is None and here:
        device = min(machine.gpu_bytes, default=None)
    sized = [(job, processes(job, device)) for job in map(job_of, found)]
    job, largest = max(sized, key=lambda pair: host_bytes(pair[1], [], 1))
    at_once = trials_at_once(trials, needed, machine.cores, len(machine.gpu_bytes)) if here else trials
    shared = once()
    verdicts = fits(largest, shared, at_once, machine, here, device)
    if device is not None and any(fit.fits is False for fit in gpu_fits(largest, device)):
        text = remedy(job, device)
        verdicts = [
            replace(fit, remedy=text) if fit.fits is False and "GPU" in fit.where and fit.unit == "GiB" else fit
            for fit in verdicts
        ]
    durations = None
    if here and not (job.settings.rllib.num_gpus_per_learner or job.settings.rllib.num_gpus_per_env_runner):
        durations = _durations(job)
    return Estimate(job, trials, at_once, largest, shared, verdicts, durations, iterations)


def _durations(job: Job) -> tuple[Duration, Duration]:
    settings, shape = job.settings, job.shape
    model, engine = settings.model, settings.engine
    rates = measured_rates(shape, model.autocast_dtype or model.dtype, engine.dtype)
    passes = passes_worth(model.gradient_checkpointing, model.lora is not None)
    runners = max(1, settings.rllib.num_env_runners)
    batch = max(1, min(engine.max_num_seqs, job.tokens.trajectories // runners))

    def of(response: int) -> Duration:
        learned = (job.tokens.prompt + response) * settings.rllib.num_epochs
        rollout = rollout_seconds(
            shape.matrices, job.engine.weights, response / runners, job.tokens.prompt / runners, batch, rates
        )
        return Duration(rollout * runners, update_seconds(shape.matrices, learned, passes, rates.operations))

    low, high = job.tokens.usual_responses
    return of(low), of(high)


def _as_dict(process: Process) -> dict[str, Any]:
    def memory(one: Memory | None) -> dict[str, Any] | None:
        return None if one is None else {"bytes": one.peak, "phase": one.phase, "parts": [asdict(part) for part in one.parts]}

    return {
        "name": process.name,
        "count": process.count,
        "gpus": process.gpus,
        "host": memory(process.host),
        "gpu": memory(process.gpu),
    }


def gib(num_bytes: float) -> str:
    """``1.50 GiB``, or MiB where it is less than one."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.0f} MiB"
