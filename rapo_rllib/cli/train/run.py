"""Run checked experiments by Ray Tune, with progress, clean interruption and a closing summary."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
import typer
from ray import tune
from ray.tune.experiment import Experiment

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import check_resources
from rapo_rllib.cli.train.ending import close_run, written
from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.cli.train.interrupt import Interruption, TrialStopper
from rapo_rllib.cli.train.progress import TrainingReporter
from rapo_rllib.cli.train.resume import resume_config
from rapo_rllib.cli.train.schedulers import make_scheduler
from rapo_rllib.monitoring.warnings import WarningWatch

_MOST_CHARS = 130  # of a folder's name, as Tune has it


def run_experiments(file: Path, specs: list[ExperimentSpec], needed: list[dict[str, float]], options: RunOptions) -> int:
    """Train all experiments; return the exit status: 1 if a trial failed, 130 if the user aborted, else 0.

    Args:
        file: the job, which hints name.
        specs: experiments, checked.
        needed: resources of each trial.
        options: of the command line.

    Raises:
        ValueError: Ray cannot be started as asked, or lacks the resources that a trial needs.
    """
    interruption = Interruption()
    trained: list[tuple[ExperimentSpec, list[Any]]] = []
    watches: defaultdict[str, WarningWatch] = defaultdict(WarningWatch)
    try:
        with ExitStack() as ended, interruption.listening():
            logs = _start_ray(options)
            ended.callback(ray.shutdown)  # only what was started here: without it, a running Ray may be somebody else's
            if not joins_cluster(options):  # a cluster may grow
                check_resources(needed, ray.cluster_resources())
            for spec in specs:  # Tune writes the result files of one experiment at a time
                if not interruption.requested:
                    trained.append((spec, _train(spec, interruption, watches, options)))
            close_run(file, trained, watches, interrupted=interruption.requested)
            # while Ray runs, as it knows where Tune's own files are
            failed = [(trial, _last_lines(trial)) for _, trials in trained for trial in trials if trial.status == "ERROR"]
    except KeyboardInterrupt:
        typer.secho("Aborted.", err=True, fg="red")
        return 130
    for trial, lines in failed:
        typer.secho(f"{trial} failed: {lines}", err=True, fg="red")
    if failed:
        typer.secho(f"All that the processes on this machine said is in {logs}", err=True, fg="red")
    return 1 if failed else 0


def _start_ray(options: RunOptions) -> Path:
    """Join the cluster that is named, or start a Ray of our own; return the folder of its log files."""
    given: dict[str, Any] = {}
    if joins_cluster(options):
        if options.ray_num_cpus is not None:
            raise ValueError("--ray-num-cpus: a running cluster has its own; leave it out, or leave out --ray-address")
        _check_reachable(options.ray_address or os.environ["RAY_ADDRESS"])
        given["address"] = options.ray_address
    else:
        hook = {} if options.verbose else {"worker_process_setup_hook": "rapo_rllib.monitoring.quiet.quiet"}
        given = {"address": "local", "num_cpus": options.ray_num_cpus, "include_dashboard": False, "runtime_env": hook}
    try:
        context = ray.init(logging_level=logging.WARNING, **given)
    except Exception as error:  # Ray's own is of no certain type, e.g. if a busy machine takes too long
        raise ValueError(f"Ray does not start: {error}") from error
    session = getattr(context, "address_info", {}).get("session_dir", "/tmp/ray/session_latest")  # Ray Client knows none
    return Path(session) / "logs"


def _check_reachable(address: str) -> None:
    """Refuse a cluster that is not there: Ray would try for many minutes to reach it."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon:  # an address of Ray Client, or "auto"
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ValueError(f"--ray-address {address}: no Ray cluster there: {error}") from error


def joins_cluster(options: RunOptions) -> bool:
    """Check whether the command joins a Ray that runs already."""
    return options.ray_address not in (None, "local") or (options.ray_address is None and "RAY_ADDRESS" in os.environ)


def _train(
    spec: ExperimentSpec, interruption: Interruption, watches: defaultdict[str, WarningWatch], options: RunOptions
) -> list[Any]:
    """Run the trials of one experiment, and return them when all have ended."""
    scheduler = make_scheduler(spec.scheduler) if spec.scheduler else None
    stopper = TrialStopper(spec.stop, interruption, getattr(scheduler, "metric", None))
    experiment = Experiment(
        name=spec.name,
        run=spec.algorithm,
        config=spec.config,
        stop=stopper,
        num_samples=spec.num_samples,
        checkpoint_config=tune.CheckpointConfig(**spec.checkpoint_config),
        storage_path=_local(spec.storage_path),
        restore=_local(spec.restore),
        max_failures=spec.max_failures,
        trial_dirname_creator=_folder,
    )
    resumed = resume_config(Path(str(experiment.path)), spec.stop) if options.resume else None
    typer.echo(f"Starting {spec.name}: {spec.algorithm_name}")
    try:
        trials: list[Any] = tune.run_experiments(
            experiment,
            scheduler=scheduler,
            verbose=2 if options.verbose else 0,
            raise_on_failed_trial=False,
            callbacks=[stopper, TrainingReporter(spec.stop, watches), *spec.loggers],
            resume_config=resumed,
        )
    except tune.TuneError as error:
        if stopper.problem:
            raise ValueError(f"experiment {spec.name!r}: {stopper.problem}") from error
        raise
    return trials


def _folder(trial: Any) -> str:
    """Name a trial's folder as Tune does, but with exact numbers."""
    return re.sub(r"[^\w.,=+-]+", "_", f"{trial}_{written(trial.evaluated_params)}")[:_MOST_CHARS].rstrip("_")


def _local(path: str | None) -> str | None:
    """Make a path absolute, unless it is the address of a remote storage."""
    return path if path is None or "://" in path else str(Path(path).expanduser().absolute())


def _last_lines(trial: Any, count: int = 3) -> str:
    copy = Path(trial.path) / "error.txt"
    own = Path(trial.error_file or copy)  # Tune's own file, which Tune copies unless the disk is full
    copied = copy.exists() and (not own.exists() or copy.stat().st_size == own.stat().st_size)
    if not (file := copy if copied else own).exists():
        return "no error file"
    lines = [line for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n  ".join(["", *lines[-count:], f"(all of it: {file})"])
