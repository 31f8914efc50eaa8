"""Read the job that a command is given: prepare the process for it, and make the config of its only trial."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rapo_rllib.cli.options import RunOptions, key_value
from rapo_rllib.monitoring.quiet import quiet_libraries

if TYPE_CHECKING:
    from rapo_rllib.algorithm.config import RAPOConfig

# Variables that Ray reads when it is imported or started; the user's own stay. Paths in a job start from the working directory.
RAY_SETTINGS = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # TrialStopper checks the metric
    "TUNE_GLOBAL_CHECKPOINT_S": "2",  # a kill loses results that Tune has not copied yet: by default those of 10 s, or more
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


def prepare(path: Path, verbose: int = 0) -> None:
    """Set what Ray reads when it is imported, and let this process and trials import modules that lie beside ``path``."""
    if not verbose:
        quiet_libraries()
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    folder = str(path.absolute().parent)
    sys.path.insert(1, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


def job_config(job: Path, overrides: Sequence[str] | None = None) -> RAPOConfig:
    """Read the config of a job with one experiment and one variant. ``overrides``: ``key=value``, as given to ``--set``.

    Raises:
        ValueError: naming the file, the key and what to do.
    """
    prepare(job)
    from rapo_rllib.algorithm.config import RAPOConfig
    from rapo_rllib.cli.train.checks import only_config
    from rapo_rllib.cli.train.experiments import read_experiments

    try:
        config = only_config(read_experiments(job, RunOptions(overrides=[key_value(item) for item in overrides or ()])))
    except ValueError as error:
        raise ValueError(f"{job}: {error}") from error
    if not isinstance(config, RAPOConfig):
        raise ValueError(f"{job}: {type(config).__name__} has no text environment and no Step-Trace Buffer: give a job of RAPO")
    return config
