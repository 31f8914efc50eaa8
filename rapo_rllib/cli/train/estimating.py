"""``rllib train file JOB --estimate``: memory of a checked job, line by line, and whether it fits; nothing is started."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import typer

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import only_config
from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.cli.train.run import joins_cluster
from rapo_rllib.estimate.layout import GIB, Machine, at_peak, fits, peak, processes, this_machine
from rapo_rllib.estimate.memory import Parts, read_shape

DOES_NOT_FIT = 3  # exit status


def show_estimate(specs: list[ExperimentSpec], options: RunOptions, gpu_gib: float | None, as_json: bool) -> int:
    """Print the estimate of a trial; return the exit status: ``DOES_NOT_FIT`` if something is known not to fit, else 0.

    Args:
        specs: the only experiment of a file, of RAPO, without a search.
        options: of the command line.
        gpu_gib: memory of each GPU of the machines that the job is for; None: this machine, or a cluster of unknown memory.
        as_json: print one JSON object, with memory in bytes, in place of lines.

    Raises:
        ValueError: the job has several trials, another algorithm than RAPO, or a mistake.
    """
    from rapo_rllib.algorithm.preflight import check_model

    config = only_config(specs)
    if specs[0].algorithm_name != "RAPO":
        raise ValueError(f"--estimate: it runs {specs[0].algorithm_name}; only jobs of RAPO can be estimated")
    check_model(config.settings)
    shape = read_shape(config.settings.model)
    elsewhere = gpu_gib is not None or joins_cluster(options)
    machine = Machine(None, None if gpu_gib is None else int(gpu_gib * GIB), None) if elsewhere else this_machine()
    processed = processes(config.settings, shape, machine.gpu_bytes)
    found: dict[str, Any] = {
        "parameters": shape.parameters,
        "adapters": shape.adapters(config.settings.model.lora),
        "processes": [{**asdict(one), "host": _memory(one.host), "gpu": _memory(one.gpu)} for one in processed],
        "fits": fits(processed, machine),
    }
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        _print(found)
    return DOES_NOT_FIT if any(fit["fits"] is False for fit in found["fits"]) else 0


def _memory(parts: Parts) -> dict[str, Any]:
    return {"bytes": peak(parts), "parts": [asdict(part) for part in at_peak(parts)]}


def _print(found: dict[str, Any]) -> None:
    typer.echo(f"{found['parameters']:,} parameters; in adapters: {found['adapters']:,}")
    for process in found["processes"]:
        for where, memory in (("on the host", process["host"]), ("on its GPU", process["gpu"])):
            if memory["parts"]:
                typer.echo(f"\n{process['count']} x {process['name']}, {where}: {_gib(memory['bytes'])} at its peak")
            for part in memory["parts"]:
                typer.echo(f"{_gib(part['num_bytes']):>12}  {part['name']}{part['phase'] and ', in phase ' + part['phase']}")
    typer.echo()
    for fit in found["fits"]:
        typer.secho(fit["text"], fg={True: "green", False: "red"}.get(fit["fits"]))


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.0f} MiB"
