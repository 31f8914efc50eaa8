"""``rllib train`` in the test's process, on the Ray of the session (fixture ``ray_session``): only trials are other processes.

What a trial imports must lie in ``tests``: Ray's workers know no other folder.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import typer

from rapo_rllib.cli.jobs import RAY_SETTINGS
from rapo_rllib.cli.main import app
from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.experiments import read_experiments
from rapo_rllib.cli.train.run import run_experiments


def train_here(folder: Path, *arguments: str) -> CompletedProcess[str]:
    """``rllib train ARGUMENTS`` in ``folder``; results go to ``folder/results``."""

    def command() -> Any:
        with pytest.raises(SystemExit) as ended:
            app(["train", *arguments, "--storage-path", "results"])
        return ended.value.code

    return _done(folder, command)


def train_toys(folder: Path, file: str, **options: Any) -> CompletedProcess[str]:
    """``rllib train file FILE`` with ``options``, and with each experiment's algorithm replaced by :class:`toy_trials.Toy`."""
    from toy_trials import Toy

    def command() -> int:
        chosen = RunOptions(replaced={"storage_path": "results"}, **options)
        specs = read_experiments(Path(file), chosen)
        for spec in specs:
            spec.algorithm = Toy
        try:
            return run_experiments(Path(file), specs, [], chosen)
        except ValueError as error:  # as the command does
            typer.secho(f"{file}: {error}", err=True)
            return 1

    return _done(folder, command)


def _done(folder: Path, command: Callable[[], int]) -> CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    with _session(folder), redirect_stdout(out), redirect_stderr(err):
        status = command()
    return CompletedProcess(["rllib"], status, out.getvalue(), err.getvalue())


@contextmanager
def _session(folder: Path) -> Iterator[None]:
    """What the command would do to its process does not outlive it, and Ray stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(ray, "init", lambda **_: SimpleNamespace(address_info={"session_dir": "/a/session"}))
        patch.setattr(ray, "shutdown", lambda: None)
        patch.setattr(sys, "path", [*sys.path])
        for name, value in {**RAY_SETTINGS, "PYTHONPATH": "", "TUNE_DISABLE_SIGINT_HANDLER": "1"}.items():
            patch.setenv(name, os.environ.get(name, value))
        yield
