"""``rllib``: train any RLlib algorithm of the new API stack from a YAML or Python file."""

from __future__ import annotations

import json
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated, Any

import typer

from rapo_rllib import __version__
from rapo_rllib.cli.options import RunOptions

app = typer.Typer(
    name="rllib", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train RLlib algorithms."
)
train_app = typer.Typer(no_args_is_help=True, help="Train.")
app.add_typer(train_app, name="train")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"rapo_rllib {__version__} with Ray {distribution_version('ray')}")
        raise typer.Exit


@app.callback()
def rllib(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train RLlib algorithms, RAPO among them."""


@train_app.callback()
def train() -> None:
    """Train."""


@train_app.command("file")
def train_file(
    path: Annotated[Path, typer.Argument(help="A .yaml, .yml or .py file.", show_default=False)],
    stop: Annotated[str | None, typer.Option("--stop", "-s", help="Stop criteria as JSON, in place of the file's.")] = None,
    env: Annotated[str | None, typer.Option("--env", "-e", help="Environment, in place of the file's.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, a config key in place of the file's.")] = None,
    checkpoint_freq: Annotated[int | None, typer.Option(help="Checkpoint every so many iterations.")] = None,
    checkpoint_at_end: Annotated[bool | None, typer.Option(help="Checkpoint when a trial ends (default: yes).")] = None,
    keep_checkpoints_num: Annotated[int | None, typer.Option(help="Keep at most so many checkpoints of a trial.")] = None,
    checkpoint_score_attr: Annotated[
        str | None, typer.Option(help="Keep those with the highest value of this result (min-...: lowest).")
    ] = None,
    storage_path: Annotated[str | None, typer.Option(help="Where results go (default: ~/ray_results).")] = None,
    num_samples: Annotated[int | None, typer.Option(help="Trials per grid point.")] = None,
    restore: Annotated[str | None, typer.Option(help="Continue from this checkpoint folder.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Tune's trial scheduler, e.g. asha or pbt (default: fifo).")] = None,
    scheduler_config: Annotated[str | None, typer.Option(help="Its arguments as JSON.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="Cluster to join; 'auto': the one on this machine.")] = None,
    ray_num_cpus: Annotated[int | None, typer.Option(help="CPUs of a Ray of its own.")] = None,
    ray_num_gpus: Annotated[int | None, typer.Option(help="GPUs of a Ray of its own.")] = None,
    ray_object_store_memory: Annotated[int | None, typer.Option(help="Its object store, bytes.")] = None,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="-v: Tune's tables, log_level INFO; -vv: DEBUG, tracebacks.")
    ] = 0,
) -> None:
    """Train what FILE describes: a YAML of experiments, or a Python file with an AlgorithmConfig named ``config``."""
    options = RunOptions(
        stop=_json_object(stop, "--stop"),
        env=env,
        overrides=[_key_value(item) for item in set_ or []],
        checkpoint_frequency=checkpoint_freq,
        checkpoint_at_end=checkpoint_at_end,
        num_to_keep=keep_checkpoints_num,
        checkpoint_score_attribute=checkpoint_score_attr,
        storage_path=storage_path,
        num_samples=num_samples,
        restore=restore,
        scheduler=scheduler,
        scheduler_config=_json_object(scheduler_config, "--scheduler-config"),
        ray_address=ray_address,
        ray_num_cpus=ray_num_cpus,
        ray_num_gpus=ray_num_gpus,
        ray_object_store_memory=ray_object_store_memory,
        verbose=verbose,
    )
    try:
        status = _train_file(path, options)
    except ValueError as error:
        if verbose > 1:
            raise
        typer.secho(f"{path}: {error}", err=True, fg="red")
        raise typer.Exit(1) from error
    raise typer.Exit(status)


def _train_file(path: Path, options: RunOptions) -> int:
    """Read, check, train; returns the exit status."""
    from rapo_rllib.cli.run import prepare, run_experiments

    prepare(path)
    from rapo_rllib.cli.checks import check_experiment
    from rapo_rllib.cli.experiments import read_experiments

    specs = read_experiments(path, options)
    for spec in specs:
        for note in dict.fromkeys(spec.notes):
            typer.secho(f"Warning: {path}: {spec.name}: {note}", err=True, fg="yellow")
    needed = [resources for spec in specs for resources in check_experiment(spec)]
    return run_experiments(path, specs, needed, options)


def _json_object(text: str | None, option: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"{option}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{option}: must be a JSON object such as '{{\"training_iteration\": 10}}'")
    return value


def _key_value(item: str) -> tuple[str, Any]:
    from rapo_rllib.cli.yaml_text import yaml_value

    key, separator, text = item.partition("=")
    if not separator or not key:
        raise typer.BadParameter(f"--set {item!r}: must be key=value")
    try:
        return key, yaml_value(text)
    except ValueError as error:
        raise typer.BadParameter(f"--set {item!r}: {error}") from error


def main() -> None:
    """Entry point of the ``rllib`` command."""
    app()


if __name__ == "__main__":
    main()
