"""Runs of the ``rllib`` command, as tests need them."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "rapo_rllib.cli.main"]
REPOSITORY = Path(__file__).resolve().parents[1]

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


def checkpoints(folder: Path) -> list[Path]:
    """Every checkpoint below ``folder/results``, oldest first."""
    return sorted((folder / "results").glob("*/*/checkpoint_*"))
