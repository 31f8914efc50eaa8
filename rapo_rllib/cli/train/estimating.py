"""``rllib train file JOB --estimate``: memory of a checked job, line by line, and whether it fits; nothing is started."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import only_config
from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.cli.train.run import joins_cluster

if TYPE_CHECKING:
    from rapo_rllib.estimate.memory import Parts

DOES_NOT_FIT = 3  # exit status
GIB = 2**30


def show_estimate(specs: list[ExperimentSpec], options: RunOptions, gpu_gib: float | None, as_json: bool) -> int:
    """Print the estimate of a trial; returns the exit status: 0, or ``DOES_NOT_FIT`` where it certainly does not.

    Args:
        specs: the only experiment of a file, of RAPO, without a search.
        options: of the command line.
        gpu_gib: memory of each GPU of the machines that the job is for; None: this one, or a cluster that is not asked.
        as_json: one object in place of lines.

    Raises:
        ValueError: there are several trials, one of another algorithm, or a mistake in it.
    """
    found = _estimate(specs, options, gpu_gib)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        _print(found)
    return DOES_NOT_FIT if any(fit["fits"] is False for fit in found["fits"]) else 0


def _estimate(specs: list[ExperimentSpec], options: RunOptions, gpu_gib: float | None) -> dict[str, Any]:
    """Memory in bytes."""
    from rapo_rllib.algorithm.preflight import check_model
    from rapo_rllib.estimate.fit import Machine, fits, this_machine
    from rapo_rllib.estimate.layout import processes
    from rapo_rllib.estimate.shape import read_shape

    config = only_config(specs)
    if specs[0].algorithm_name != "RAPO":
        raise ValueError(f"--estimate: it runs {specs[0].algorithm_name}; only jobs of RAPO can be estimated")
    settings = config.settings
    check_model(settings)
    shape = read_shape(settings.model)
    if gpu_gib is not None or joins_cluster(options):
        machine = Machine(None, None if gpu_gib is None else int(gpu_gib * GIB), None)
    else:
        machine = this_machine()
    found = processes(settings, shape, machine.gpu_bytes)
    return {
        "parameters": shape.parameters,
        "adapters": shape.adapters(settings.model.lora),
        "processes": [{**asdict(one), "host": _memory(one.host), "gpu": _memory(one.gpu)} for one in found],
        "fits": [{**asdict(fit), "fits": fit.fits, "text": str(fit)} for fit in fits(found, machine)],
    }


def _memory(parts: Parts) -> dict[str, Any]:
    from rapo_rllib.estimate.layout import at_peak, peak

    return {"bytes": peak(parts), "parts": [asdict(part) for part in at_peak(parts)]}


def _print(found: dict[str, Any]) -> None:
    trained = f"{found['adapters']:,} in adapters" if found["adapters"] else "all"
    typer.echo(f"{found['parameters']:,} parameters, trained: {trained}")
    for process in found["processes"]:
        several = f"{process['count']} x " if process["count"] > 1 else ""
        for where, memory in (("on the host", process["host"]), ("on its GPU", process["gpu"])):
            if memory["parts"]:
                typer.echo(f"\n{several}{process['name']}, {where}: {_gib(memory['bytes'])} at its peak")
            for part in memory["parts"]:
                typer.echo(f"{_gib(part['num_bytes']):>12}  {part['name']}{part['phase'] and ', in phase ' + part['phase']}")
    typer.echo()
    for fit in found["fits"]:
        typer.secho(fit["text"], fg={True: "green", False: "red"}.get(fit["fits"]))


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.0f} MiB"
