"""Runs of the ``rllib`` command, as tests need them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from processes import CONTEXT
from typer.testing import CliRunner

from rapo_rllib.cli.main import app

COMMAND = [sys.executable, "-m", "rapo_rllib.cli.main"]
REPOSITORY = Path(__file__).resolve().parents[2]

# seconds of training at most, whatever the test is about
SMALL_PPO = "train_batch_size_per_learner: 64, minibatch_size: 32, num_epochs: 1, num_env_runners: 0"


def environment() -> dict[str, str]:
    """The package is importable wherever the command starts."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


def rllib(folder: Path, *arguments: str, timeout_s: float = 180) -> subprocess.CompletedProcess:
    """Run the command in ``folder``; results go to ``folder/results``."""
    options = ["--storage-path", "results"] if "train" in arguments else []
    return subprocess.run(
        [*COMMAND, *arguments, *options],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )


def said(*arguments: str, status: int = 0, input: str | None = None) -> str:
    """What the command says in this process, which ends with ``status`` and without a traceback."""
    done = CliRunner().invoke(app, [*arguments], input=input)
    assert done.exit_code == status, (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def refused(
    patch: pytest.MonkeyPatch, file: Path, text: str | None, *options: str, init: Callable[..., None] | None = None
) -> str:
    """What ``rllib train file`` says when it refuses a file with this text (None: as it lies there), before Ray is begun."""
    if text is not None:
        file.write_text(text)
    patch.setenv("PYTHONPATH", "")  # what the command sets for its process does not outlive the test
    patch.setattr(sys, "path", list(sys.path))
    patch.setattr("ray.init", init or ray_was_started)
    patch.setattr("ray.shutdown", ray_was_ended)
    done = CliRunner().invoke(app, ["train", "file", str(file), *options])
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), (done.output, done.exception)
    assert "Starting" not in done.stdout and done.stderr.startswith(f"{file}: ")
    return str(done.stderr)


def run_here(patch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """The command in this process; what it said. (Typer's own runner closes the streams that vLLM keeps.)"""
    said: list[str] = []
    patch.setattr(typer, "echo", lambda text="", **_: said.append(str(text)))
    patch.setattr(typer, "secho", lambda text="", **_: said.append(str(text)))
    try:
        app(list(arguments), standalone_mode=False)
    except typer.Exit as ended:
        pytest.fail(f"{ended.exit_code}: {said}")
    return said


def started(folder: Path, out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command begun in ``folder``, as the leader of a process group; what it says goes to the file ``out``."""
    with out.open("wb") as file:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def forked(folder: Path, *arguments: str) -> Any:
    """The command begun in ``folder``, in a process that is forked where its imports are done."""
    process = CONTEXT.Process(target=_command, args=(folder, arguments), daemon=True)
    process.start()
    return process


def _command(folder: Path, arguments: tuple[str, ...]) -> None:
    os.chdir(folder)
    app(list(arguments))


def wait_for_text(file: Path, text: str, process: subprocess.Popen[bytes], timeout_s: float = 120) -> None:
    """Until ``file`` has ``text``; fails where the process ends before."""
    end = time.monotonic() + timeout_s
    while text not in file.read_text():
        assert process.poll() is None, file.read_text()
        assert time.monotonic() < end, file.read_text()
        time.sleep(0.05)


def checkpoints(folder: Path) -> list[Path]:
    """Every checkpoint below ``folder/results``, oldest first."""
    return sorted((folder / "results").glob("*/*/checkpoint_*"))


def ray_was_started(*arguments: Any, **options: Any) -> None:
    """In the place of ``ray.init``, where a command is to end before. Whether Ray runs says nothing: other tests share it."""
    pytest.fail("Ray was started")


def ray_was_ended() -> None:
    """In the place of ``ray.shutdown``, where a command has started none: other tests share what runs."""
    pytest.fail("Ray was ended")
