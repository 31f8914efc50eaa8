"""``rllib evaluate`` of a checkpoint of any RLlib algorithm: episodes of its policy, without exploration."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


def evaluate_episodes(
    checkpoint: Path, algorithm: str | None, duration: int, unit: str, overrides: Iterable[tuple[str, Any]]
) -> dict[str, Any]:
    """Run episodes, print their returns and lengths, and return them.

    Args:
        checkpoint: of any algorithm.
        algorithm: what the checkpoint must be of; None: any.
        duration: how many.
        unit: ``episodes`` or ``timesteps``.
        overrides: config keys in place of the checkpoint's.

    Raises:
        ValueError: the checkpoint is of another algorithm, or its environment is not known here.
    """
    import ray

    from rapo_rllib.checkpoints.folder import trained_algorithm
    from rapo_rllib.cli.jobs import prepare
    from rapo_rllib.cli.values import with_overrides

    prepare(Path("here"))  # the modules of a job in this folder can be imported
    cls, config = trained_algorithm(checkpoint)
    if algorithm is not None and algorithm.upper() != cls.__name__.upper():
        raise ValueError(f"--algo {algorithm}: the checkpoint is of {cls.__name__}")
    with_overrides(config, overrides)
    config.evaluation(
        evaluation_interval=1,
        evaluation_num_env_runners=0,
        evaluation_parallel_to_training=False,
        evaluation_duration=duration,
        evaluation_duration_unit=unit,
        evaluation_config={"explore": False},
    )
    config.env_runners(num_env_runners=0)
    config.learners(num_learners=0)
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        measured = _measured(checkpoint, config)
    finally:
        if started_here:
            ray.shutdown()
    found = {"checkpoint": str(checkpoint), "algorithm": cls.__name__, "env": str(config.env), **measured}
    for key, value in found.items():
        typer.echo(f"{key:<22} {value:.3f}" if isinstance(value, float) else f"{key:<22} {value}")
    return found


def _measured(checkpoint: Path, config: AlgorithmConfig) -> dict[str, Any]:
    import gymnasium

    try:
        algorithm = config.build_algo()
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"env {config.env!r} of the checkpoint cannot be made here: {error}; name one with --env") from error
    try:
        algorithm.restore_from_path(str(checkpoint.absolute()))
        measured = algorithm.evaluate()["env_runners"]
    finally:
        algorithm.stop()
    counts = {name: int(measured[name]) for name in ("num_episodes", "num_env_steps_sampled") if name in measured}
    names = ("episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean")
    return counts | {name: float(measured[name]) for name in names if math.isfinite(measured.get(name, math.nan))}
