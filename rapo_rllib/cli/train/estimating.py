"""``rllib train file JOB --estimate``: memory and time of a checked job, and whether it fits; nothing is started."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import made_configs
from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.cli.train.run import joins_cluster
from rapo_rllib.settings import ObjectiveSettings, Settings

if TYPE_CHECKING:
    from rich.table import Table

    from rapo_rllib.estimate.parts import Process
    from rapo_rllib.estimate.report import Estimate

DOES_NOT_FIT = 3  # exit status


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
    return DOES_NOT_FIT if any(one.fits_all is False for one in made.values()) else 0


def _estimate(spec: ExperimentSpec, needed: list[dict[str, float]], options: RunOptions, gpu_gib: float | None) -> Estimate:
    from rapo_rllib.algorithm.preflight import check_model
    from rapo_rllib.estimate.machine import this_machine
    from rapo_rllib.estimate.report import estimate

    configs = list(made_configs(replace(spec, config=largest_values(spec.config))))
    if spec.algorithm_name != "RAPO":
        raise ValueError(
            f"--estimate: experiment {spec.name!r} runs {spec.algorithm_name}; only those of RAPO can be estimated"
        )
    for config in configs:
        check_model(config.settings)
    machine = this_machine()
    machine = replace(machine, cores=options.ray_num_cpus or os.cpu_count() or machine.cores)
    most = {name: max(one.get(name, 0) for one in needed) for name in ("CPU", "GPU")}
    stop = spec.stop.get("training_iteration")
    trials = len(needed) * spec.num_samples
    iterations = None if stop is None else int(stop)
    return estimate(
        _different(config.settings for config in configs),
        trials,
        most,
        machine,
        here=gpu_gib is None and not joins_cluster(options),
        device=None if gpu_gib is None else int(gpu_gib * 2**30),
        iterations=iterations,
    )


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


def _different(found: Iterable[Settings]) -> list[Settings]:
    """Those that memory can tell apart; a grid over learning rates is one."""
    different = {}
    for settings in found:
        rllib = replace(settings.rllib, lr=1.0, seed=0)
        objective = ObjectiveSettings(kl_coeff=settings.objective.kl_coeff)
        different[repr(replace(settings, rllib=rllib, objective=objective))] = settings
    return list(different.values())


def _print(name: str, one: Estimate) -> None:
    from rich.console import Console

    console = Console()
    console.print(_overview(name, one))
    for process in (*one.processes, *one.once):
        console.print(_memory(process))
    for line in _times(one):
        typer.echo(line)
    for fit in one.fits:
        typer.secho(str(fit), fg={True: "green", False: "red"}.get(fit.fits))  # type: ignore[arg-type]


def _overview(name: str, one: Estimate) -> Table:
    from rich.table import Table

    job, table = one.job, Table(title=name, show_header=False, title_justify="left")
    low, high = job.tokens.usual_responses
    trained = f"{job.shape.adapters:,} in adapters" if job.shape.adapters else "all"
    table.add_row("parameters", f"{job.shape.parameters:,} (trained: {trained})", "exact")
    table.add_row("keys and values of a token", f"{job.engine.kv_per_token:,} bytes in each worker of an engine", "exact")
    table.add_row("trajectories of an iteration", f"{job.tokens.trajectories:,} of {job.tokens.questions:,} questions", "bound")
    table.add_row("their response tokens", f"{job.tokens.response:,}", "bound")
    table.add_row("", f"{low:,} to {high:,}", "guess")
    table.add_row("tokens of a micro batch", f"{job.row_tokens:,}", "bound")
    table.add_row("trials", f"{one.trials}, {one.at_once} at once", "exact")
    return table


def _memory(process: Process) -> Table:
    from rich.table import Table

    from rapo_rllib.estimate.report import gib

    several = f", {process.count} of them, each" if process.count > 1 else ""
    table = Table("", "memory", "", title=f"{process.name}{several}", title_justify="left")
    for where, memory in (("on the host", process.host), ("on its GPU", process.gpu)):
        if memory is not None:
            for part in memory.parts:
                table.add_row(part.name, gib(part.num_bytes), str(part.kind))
            when = f", at its peak in phase {memory.phase!r}" if memory.phase else ""
            table.add_row(f"{where}{when}", gib(memory.peak), "", style="bold", end_section=True)
    return table


def _times(one: Estimate) -> Iterator[str]:
    from rapo_rllib.estimate.duration import FACTOR

    if one.durations is None:
        yield "Time: not known before the job runs, as it depends on its GPUs; `rllib train` shows it after an iteration."
        return
    few, many = (duration.iteration for duration in one.durations)
    text = f"Time, a guess that may be off by a factor of {FACTOR}: {few:.0f} to {many:.0f} s an iteration"
    if one.iterations is not None:
        text += f", {one.iterations * few / 60:.0f} to {one.iterations * many / 60:.0f} minutes for {one.iterations}"
    yield f"{text}; evaluation not counted."
