"""``rllib``: train any RLlib algorithm of the new API stack from a YAML or Python file; see ``corpus.py`` for passages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rapo_rllib import __version__
from rapo_rllib.cli.buffer import command as _buffer_commands  # noqa: F401  (adds them)
from rapo_rllib.cli.buffer.options import buffer_app
from rapo_rllib.cli.config.command import config_app
from rapo_rllib.cli.corpus import corpus_app
from rapo_rllib.cli.endings import fail
from rapo_rllib.cli.evaluate.command import evaluate
from rapo_rllib.cli.example import example_app
from rapo_rllib.cli.options import RunOptions, json_object, key_value
from rapo_rllib.cli.report import report
from rapo_rllib.cli.tools import tools_app

if TYPE_CHECKING:
    from rapo_rllib.cli.train.experiments import ExperimentSpec

app = typer.Typer(
    name="rllib", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train RLlib algorithms."
)
train_app = typer.Typer(no_args_is_help=True, help="Train.")
app.add_typer(train_app, name="train")
app.add_typer(corpus_app, name="corpus")
app.add_typer(buffer_app, name="buffer")
app.add_typer(config_app, name="config")
app.add_typer(tools_app, name="tools")
app.command("evaluate")(evaluate)
app.command("report")(report)


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


@train_app.callback(invoke_without_command=True)
def train(
    context: typer.Context,
    algo: Annotated[str | None, typer.Option(help="An algorithm of RLlib, e.g. PPO; no file is needed then.")] = None,
    env: Annotated[str | None, typer.Option("--env", "-e", help="Its environment.")] = None,
    config: Annotated[str | None, typer.Option("--config", "-c", help="Its config keys as JSON.")] = None,
    stop: Annotated[str | None, typer.Option("--stop", "-s", help="Stop criteria as JSON.")] = None,
    checkpoint_freq: Annotated[int | None, typer.Option(help="Checkpoint every so many iterations.")] = None,
    storage_path: Annotated[str | None, typer.Option(help="Where results go (default: ~/ray_results).")] = None,
    num_samples: Annotated[int | None, typer.Option(help="Trials per grid point.")] = None,
    restore: Annotated[str | None, typer.Option(help="Continue from this checkpoint folder.")] = None,
    ray_num_cpus: Annotated[int | None, typer.Option(help="CPUs of a Ray of its own.")] = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="As of `rllib train file`.")] = 0,
) -> None:
    """Train what a file describes (rllib train file), or an algorithm by its name (rllib train --algo)."""
    if context.invoked_subcommand is not None:
        if algo is not None:
            raise typer.BadParameter(f"--algo and {context.invoked_subcommand!r}: give one of them")
        return
    if algo is None or env is None:
        raise typer.BadParameter("give --algo and --env, or: rllib train file FILE")
    options = RunOptions(
        stop=json_object(stop, "--stop"),
        env=env,
        checkpoint_frequency=checkpoint_freq,
        storage_path=storage_path,
        num_samples=num_samples,
        restore=restore,
        ray_num_cpus=ray_num_cpus,
        verbose=verbose,
    )
    raise typer.Exit(
        _status(lambda: _train_named(algo, json_object(config, "--config") or {}, options), f"--algo {algo}", verbose)
    )


def _at_least_one(value: float | None) -> float | None:
    """A number of GiB; not by typer's own bound, which takes so much room that the help cuts the names of options."""
    if value is not None and value < 1:
        raise typer.BadParameter(f"{value:g} is not at least 1")
    return value


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
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of this name that was killed or interrupted.")
    ] = False,
    scheduler: Annotated[str | None, typer.Option(help="Tune's trial scheduler, e.g. asha or pbt (default: fifo).")] = None,
    scheduler_config: Annotated[str | None, typer.Option(help="Its arguments as JSON.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="Cluster to join; 'auto': the one on this machine.")] = None,
    ray_num_cpus: Annotated[int | None, typer.Option(help="CPUs of a Ray of its own.")] = None,
    ray_num_gpus: Annotated[int | None, typer.Option(help="GPUs of a Ray of its own.")] = None,
    ray_object_store_memory: Annotated[int | None, typer.Option(help="Its object store, bytes.")] = None,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="-v: Tune's tables, log_level INFO; -vv: DEBUG, tracebacks.")
    ] = 0,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Only say what memory it needs, and whether it fits (status 3: it does not)."),
    ] = False,
    gpu_gib: Annotated[
        float | None,
        typer.Option(
            callback=_at_least_one,
            help="With --estimate: memory of each GPU, where the job is to run on other machines than this one.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --estimate: as one JSON object.")] = False,
) -> None:
    """Train what FILE describes: a YAML of experiments, or a Python file with an AlgorithmConfig named ``config``."""
    options = RunOptions(
        stop=json_object(stop, "--stop"),
        env=env,
        overrides=[key_value(item) for item in set_ or []],
        checkpoint_frequency=checkpoint_freq,
        checkpoint_at_end=checkpoint_at_end,
        num_to_keep=keep_checkpoints_num,
        checkpoint_score_attribute=checkpoint_score_attr,
        storage_path=storage_path,
        num_samples=num_samples,
        restore=restore,
        resume=resume,
        scheduler=scheduler,
        scheduler_config=json_object(scheduler_config, "--scheduler-config"),
        ray_address=ray_address,
        ray_num_cpus=ray_num_cpus,
        ray_num_gpus=ray_num_gpus,
        ray_object_store_memory=ray_object_store_memory,
        verbose=verbose,
    )
    for name, given in (("--json", as_json), ("--gpu-gib", gpu_gib is not None)):
        if given and not estimate:
            raise typer.BadParameter(f"{name} is for --estimate")
    work = partial(_estimate_file, path, options, gpu_gib, as_json) if estimate else partial(_train_file, path, options)
    raise typer.Exit(_status(work, str(path), verbose))


app.add_typer(example_app(train_file), name="example")


def _status(training: Callable[[], int], what: str, verbose: int) -> int:
    """The exit status of a training; a mistake in ``what`` is one line and exit status 1."""
    try:
        return training()
    except ValueError as error:
        if verbose > 1:
            raise
        fail(f"{what}: {error}")


def _train_file(path: Path, options: RunOptions) -> int:
    from rapo_rllib.cli.train.run import prepare

    prepare(path, options.verbose)
    from rapo_rllib.cli.train.experiments import read_experiments

    return _train(read_experiments(path, options), f"file {path}", options)


def _estimate_file(path: Path, options: RunOptions, gpu_gib: float | None, as_json: bool) -> int:
    """Check, and say what the job needs; returns the exit status."""
    from rapo_rllib.cli.train.run import prepare

    prepare(path, options.verbose)
    from rapo_rllib.cli.train.estimating import show_estimate
    from rapo_rllib.cli.train.experiments import read_experiments

    return show_estimate(read_experiments(path, options), options, gpu_gib, as_json)


def _train_named(algo: str, config: dict[str, Any], options: RunOptions) -> int:
    from rapo_rllib.cli.train.run import prepare

    prepare(Path("here"), options.verbose)  # modules in this folder can be imported
    from rapo_rllib.cli.train.experiments import named_experiment

    return _train([named_experiment(algo, config, options)], f"--algo {algo} --env {options.env}", options)


def _train(specs: list[ExperimentSpec], described: str, options: RunOptions) -> int:
    """Check and train; returns the exit status."""
    from rapo_rllib.cli.train.checks import check_experiment
    from rapo_rllib.cli.train.run import run_experiments

    needed = [resources for spec in specs for resources in check_experiment(spec)]
    return run_experiments(described, specs, needed, options)


def main() -> None:
    """Entry point of the ``rllib`` command."""
    app()


if __name__ == "__main__":
    main()
