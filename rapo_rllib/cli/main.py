"""``rllib``: train any RLlib algorithm of the new API stack from a file; evaluate language models, fill buffers, report."""

from __future__ import annotations

from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated

import typer

from rapo_rllib import __version__
from rapo_rllib.cli.buffer import build as _build  # noqa: F401  (adds its command)
from rapo_rllib.cli.buffer.commands import buffer_app
from rapo_rllib.cli.corpus import corpus_app
from rapo_rllib.cli.evaluate.command import evaluate
from rapo_rllib.cli.example import example_app
from rapo_rllib.cli.jobs import prepare
from rapo_rllib.cli.options import Overrides, RunOptions, json_object, key_value
from rapo_rllib.cli.terminal import fail
from rapo_rllib.cli.tools import tools_app

app = typer.Typer(
    name="rllib", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train RLlib algorithms."
)
train_app = typer.Typer(no_args_is_help=True, help="Train.")
config_app = typer.Typer(no_args_is_help=True, help="The keys of a job's config.")
app.add_typer(train_app, name="train")
app.add_typer(corpus_app, name="corpus")
app.add_typer(buffer_app, name="buffer")
app.add_typer(config_app, name="config")
app.add_typer(tools_app, name="tools")
app.add_typer(example_app, name="example")
app.command("evaluate")(evaluate)


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


@train_app.command("file")
def train_file(
    path: Annotated[Path, typer.Argument(help="A .yaml, .yml or .py file.", show_default=False)],
    stop: Annotated[str | None, typer.Option("--stop", "-s", help="Stop criteria as JSON, in place of the file's.")] = None,
    set_: Overrides = None,
    storage_path: Annotated[str | None, typer.Option(help="Where results go (default: ~/ray_results).")] = None,
    num_samples: Annotated[int | None, typer.Option(help="Trials per grid point.")] = None,
    restore: Annotated[str | None, typer.Option(help="Continue from this checkpoint folder.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of this name that was killed or interrupted.")
    ] = False,
    ray_address: Annotated[str | None, typer.Option(help="Cluster to join; 'auto': the one on this machine.")] = None,
    ray_num_cpus: Annotated[int | None, typer.Option(help="CPUs of a Ray of its own.")] = None,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="-v: Tune's tables, log_level INFO; -vv: DEBUG, tracebacks.")
    ] = 0,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Only say what memory it needs, and whether it fits (status 3: it does not)."),
    ] = False,
    gpu_gib: Annotated[
        float | None,
        typer.Option(help="With --estimate: memory of each GPU, where the job is to run on other machines than this one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --estimate: as one JSON object.")] = False,
) -> None:
    """Train what FILE describes: a YAML of experiments, or a Python file with an AlgorithmConfig named ``config``."""
    replaced = {
        "stop": json_object(stop, "--stop"),
        "storage_path": storage_path,
        "num_samples": num_samples,
        "restore": restore,
    }
    overrides = [("log_level", "INFO" if verbose == 1 else "DEBUG")] if verbose else []
    overrides += [key_value(item) for item in set_ or []]
    options = RunOptions(overrides, replaced, resume, ray_address, ray_num_cpus, verbose)
    for name, given in (("--json", as_json), ("--gpu-gib", gpu_gib is not None)):
        if given and not estimate:
            raise typer.BadParameter(f"{name} is for --estimate")
    if gpu_gib is not None and gpu_gib < 1:
        raise typer.BadParameter(f"--gpu-gib: {gpu_gib:g} is not at least 1")
    prepare(path, verbose)
    from rapo_rllib.cli.train.checks import check_experiment
    from rapo_rllib.cli.train.estimating import show_estimate
    from rapo_rllib.cli.train.experiments import read_experiments
    from rapo_rllib.cli.train.run import run_experiments

    try:
        specs = read_experiments(path, options)
        if estimate:
            status = show_estimate(specs, options, gpu_gib, as_json)
        else:
            needed = [resources for spec in specs for resources in check_experiment(spec)]
            status = run_experiments(path, specs, needed, options)
    except ValueError as error:
        if verbose > 1:
            raise
        fail(f"{path}: {error}")
    raise typer.Exit(status)


@app.command("report")
def report(
    run_dir: Annotated[Path, typer.Argument(help="A trial's folder, or one with trials in it.", show_default=False)],
    output: Annotated[Path | None, typer.Option(help="The page (default: report.html in RUN_DIR).")] = None,
    max_mb: Annotated[float, typer.Option(help="Megabytes of transcripts in the page; the newest come first.")] = 20.0,
) -> None:
    """Write one page with the curves of a run, a table of its trials, and a reader for its trajectories.

    Also while the run goes; for trajectories the job needs ``transcripts: true``.
    """
    from rapo_rllib.report.page import write_report

    try:
        made = write_report(run_dir, output, max_mb)
    except ValueError as error:
        fail(f"Error: {error}")
    trials = "1 trial" if made.trials == 1 else f"{made.trials} trials"
    typer.echo(f"{made.path}: {trials}, {made.groups} questions with trajectories, {made.num_bytes / 1e6:.1f} MB")


@config_app.command("keys")
def config_keys(
    words: Annotated[list[str] | None, typer.Argument(help="Show only keys with all of these in name or meaning.")] = None,
) -> None:
    """Show keys with what they must be, defaults and meanings."""
    from rapo_rllib.cli.reference import config_sections

    wanted = [word.lower() for word in words or []]
    found = 0
    for section in config_sections():
        for key in section.keys:
            if all(word in f"{key.name} {key.meaning}".lower() for word in wanted):
                found += 1
                typer.secho(key.name, bold=True, nl=False)
                typer.echo(f": {key.must_be} (default: {key.default})\n    {key.meaning}")
    if not found:
        typer.secho(f"No key has {' and '.join(map(repr, wanted))} in its name or meaning.", err=True, fg="red")
        raise typer.Exit(1)


@config_app.command("markdown")
def config_markdown() -> None:
    """Print all keys as a page of Markdown."""
    from rapo_rllib.cli.reference import markdown

    typer.echo(markdown(), nl=False)


@config_app.command("typing")
def config_typing() -> None:
    """Print the types of RAPOConfig.training as a stub."""
    from rapo_rllib.cli.reference import typed

    typer.echo(typed(), nl=False)


def main() -> None:
    """Run the ``rllib`` command."""
    app()


if __name__ == "__main__":
    main()
