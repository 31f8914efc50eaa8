"""``rllib train file JOB --estimate``: memory of a checked job, line by line, and whether it fits; nothing is started."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import made_configs
from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.cli.train.run import joins_cluster

if TYPE_CHECKING:
    from rich.table import Table

    from rapo_rllib.estimate.fit import Fit
    from rapo_rllib.estimate.layout import Job, Process
    from rapo_rllib.estimate.memory import Parts

DOES_NOT_FIT = 3  # exit status
GIB = 2**30


@dataclass(frozen=True)
class Estimate:
    """The largest trial of an experiment, and as many of them as run at once."""

    job: Job
    trials: int  # in all
    at_once: int
    processes: list[Process]  # of one trial, and those that run once
    host_bytes: int  # of all of them
    fits: list[Fit]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; memory in bytes."""
        shape, lora = self.job.shape, self.job.settings.model.lora
        return {
            "model": {"parameters": shape.parameters, "adapters": shape.adapters(lora), **asdict(shape)},
            "tokens": {"row": self.job.row.tokens, "longest": self.job.engine.longest},
            "trajectories": self.job.trajectories,
            "trials": self.trials,
            "trials_at_once": self.at_once,
            "processes": [_as_dict(process) for process in self.processes],
            "kv_bytes_per_token": self.job.engine.kv_per_token,
            "host_bytes": self.host_bytes,
            "fits": [{**asdict(fit), "fits": fit.fits, "text": str(fit)} for fit in self.fits],
        }


def show_estimates(
    specs: list[ExperimentSpec],
    needed: list[list[dict[str, float]]],
    options: RunOptions,
    *,
    gpu_gib: float | None = None,
    as_json: bool = False,
) -> int:
    """Print an estimate of each experiment; returns the exit status: 0, or ``DOES_NOT_FIT`` where one certainly does not.

    Args:
        specs: checked.
        needed: what a trial of each variant asks Ray for, by experiment.
        options: of the command line.
        gpu_gib: memory of each GPU of the machines that the job is for; None: this one, or a cluster that is not asked.
        as_json: one object, by experiment, in place of tables.

    Raises:
        ValueError: an experiment is of another algorithm than RAPO.
    """
    made = {spec.name: _estimate(spec, resources, options, gpu_gib) for spec, resources in zip(specs, needed, strict=True)}
    if as_json:
        typer.echo(json.dumps({name: one.as_dict() for name, one in made.items()}, ensure_ascii=False))
    else:
        for name, one in made.items():
            _print(name, one)
    return DOES_NOT_FIT if any(fit.fits is False for one in made.values() for fit in one.fits) else 0


def _estimate(spec: ExperimentSpec, needed: list[dict[str, float]], options: RunOptions, gpu_gib: float | None) -> Estimate:
    from rapo_rllib.algorithm.preflight import check_model
    from rapo_rllib.estimate.fit import Machine, fits, gpu_fits, host_bytes, this_machine
    from rapo_rllib.estimate.layout import job_of, processes, shared
    from rapo_rllib.estimate.shape import read_shape

    if spec.algorithm_name != "RAPO":
        raise ValueError(
            f"--estimate: experiment {spec.name!r} runs {spec.algorithm_name}; only those of RAPO can be estimated"
        )
    every = [config.settings for config in made_configs(replace(spec, config=largest_values(spec.config)))]
    for settings in every:
        check_model(settings)
    jobs = (job_of(settings, read_shape(settings.model)) for settings in every)
    job = max(jobs, key=lambda one: host_bytes(one) + sum(fit.needed for fit in gpu_fits(one, None)))
    trials = at_once = len(needed) * spec.num_samples
    if gpu_gib is not None or joins_cluster(options):
        machine = Machine(None, None if gpu_gib is None else int(gpu_gib * GIB), None)
    else:
        machine = this_machine()
        there = {"CPU": options.ray_num_cpus or os.cpu_count() or 1, "GPU": machine.gpus or 0}
        at_once = trials_at_once(trials, needed, there)
    found = [*processes(job, machine.gpu_bytes), *shared(job, at_once)]
    return Estimate(job, trials, at_once, found, host_bytes(job, at_once), fits(job, at_once, machine))


def trials_at_once(number: int, needed: list[dict[str, float]], there: dict[str, int]) -> int:
    """Count the trials that Ray runs at the same time: what the scarcest resource allows, at least one.

    Example: 4 trials of 2 CPUs each on 6 cores: 3.
    """
    most = {name: max(one.get(name, 0) for one in needed) for name in there}
    room = [amount / most[name] for name, amount in there.items() if most[name] and amount]
    return max(1, min([number, *map(math.floor, room)]))


def largest_values(value: Any) -> Any:
    """``value`` with what Tune draws at random replaced: numbers by the largest, choices by all of them.

    Example: ``{"lr": tune.uniform(0, 1), "group_size": tune.choice([4, 8])}`` becomes
    ``{"lr": 1.0, "group_size": 8}``; choices that are no numbers become a ``grid_search``.
    """
    from ray.tune.search.sample import Categorical, Domain

    if isinstance(value, dict):
        return {key: largest_values(inner) for key, inner in value.items()}
    if isinstance(value, Categorical):
        numbers = [one for one in value.categories if isinstance(one, int | float) and not isinstance(one, bool)]
        return max(numbers) if len(numbers) == len(value.categories) else {"grid_search": list(value.categories)}
    if isinstance(value, Domain):
        return getattr(value, "upper", None) or value.sample()
    return value


def _as_dict(process: Process) -> dict[str, Any]:
    from rapo_rllib.estimate.layout import at_peak, peak

    def memory(parts: Parts) -> dict[str, Any]:
        return {"bytes": peak(parts), "parts": [asdict(part) for part in at_peak(parts)]}

    gpu = memory(process.gpu) if process.gpu else None
    return {"name": process.name, "count": process.count, "gpus": process.gpus, "host": memory(process.host), "gpu": gpu}


def _print(name: str, one: Estimate) -> None:
    from rich.console import Console
    from rich.table import Table

    job, console = one.job, Console()
    table = Table(title=name, show_header=False, title_justify="left")
    adapters = job.shape.adapters(job.settings.model.lora)
    table.add_row("parameters", f"{job.shape.parameters:,} (trained: {f'{adapters:,} in adapters' if adapters else 'all'})")
    table.add_row("keys and values of a token", f"{job.engine.kv_per_token:,} bytes in each worker of an engine")
    table.add_row("trajectories of an iteration", f"{job.trajectories:,} at most")
    table.add_row("tokens of a micro batch", f"{job.row.tokens:,} at most")
    table.add_row("trials", f"{one.trials}, {one.at_once} at once")
    console.print(table)
    for process in one.processes:
        console.print(_memory(process))
    for fit in one.fits:
        typer.secho(str(fit), fg={True: "green", False: "red"}.get(fit.fits))  # type: ignore[arg-type]


def _memory(process: Process) -> Table:
    from rich.table import Table

    from rapo_rllib.estimate.layout import at_peak, peak

    several = f", {process.count} of them, each" if process.count > 1 else ""
    table = Table("", "memory", "when", title=f"{process.name}{several}", title_justify="left")
    for where, parts in (("on the host", process.host), ("on its GPU", process.gpu)):
        for part in at_peak(parts):
            table.add_row(part.name, _gib(part.num_bytes), part.phase and f"in phase {part.phase}")
        if parts:
            table.add_row(where, _gib(peak(parts)), "at its peak", style="bold", end_section=True)
    return table


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.0f} MiB"
