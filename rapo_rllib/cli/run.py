"""Checked experiments through Ray Tune, with progress, clean interruption and a closing summary."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from rapo_rllib.cli.experiments import ExperimentSpec
from rapo_rllib.cli.options import RunOptions

# read by Ray when it is imported or started; what the user has set stays
_QUIET = {"RAY_DEDUP_LOGS": "0", "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0", "RAY_AIR_NEW_OUTPUT": "0"}


def run_experiments(path: Path, specs: list[ExperimentSpec], options: RunOptions) -> int:
    """Train; returns the exit status: 1 when a trial failed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import tune

    from rapo_rllib.cli.interrupt import Interruption
    from rapo_rllib.cli.progress import TrainingReporter
    from rapo_rllib.cli.summary import close_run

    interruption = Interruption()
    interruption.listen()
    _start_ray(options)
    try:
        trials = tune.run_experiments(
            [_experiment(spec, interruption) for spec in specs],
            concurrent=True,
            verbose=2 if options.verbose else 0,
            raise_on_failed_trial=False,
            callbacks=[TrainingReporter()],
        )
        close_run(path, trials)
    except KeyboardInterrupt:
        typer.secho("Aborted.", err=True, fg="red")
        return 130
    finally:
        ray.shutdown()
    failed = [trial for trial in trials if trial.status != "TERMINATED"]
    for trial in failed:
        typer.secho(f"{trial} failed: {_last_lines(trial)}", err=True, fg="red")
    return 1 if failed else 0


def _start_ray(options: RunOptions) -> None:
    import ray

    local: dict[str, Any] = {
        "num_cpus": options.ray_num_cpus,
        "num_gpus": options.ray_num_gpus,
        "object_store_memory": options.ray_object_store_memory,
    }
    given = {key: value for key, value in local.items() if value is not None}
    if options.ray_address is None:
        given["include_dashboard"] = False
    ray.init(address=options.ray_address, ignore_reinit_error=True, logging_level="warning", **given)


def _experiment(spec: ExperimentSpec, interruption: Any) -> Any:
    from ray.tune import CheckpointConfig
    from ray.tune.experiment import Experiment

    from rapo_rllib.cli.interrupt import StopAtCriteria

    return Experiment(
        name=spec.name,
        run=spec.run,
        config=spec.config,
        stop=StopAtCriteria(spec.stop, interruption),
        num_samples=spec.num_samples,
        checkpoint_config=CheckpointConfig(**spec.checkpoint_config),
        storage_path=str(Path(spec.storage_path).expanduser().absolute()) if spec.storage_path else None,
        restore=str(Path(spec.restore).absolute()) if spec.restore else None,
        max_failures=spec.max_failures,
    )


def _last_lines(trial: Any, count: int = 3) -> str:
    file = trial.error_file
    if not file or not Path(file).exists():
        return "no error file"
    lines = [line for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "\n  ".join(["", *lines[-count:], f"(all of it: {file})"])
