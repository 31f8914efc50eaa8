"""``rllib evaluate`` of a checkpoint of any RLlib algorithm: episodes of its policy, without exploration."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


@dataclass(frozen=True)
class EpisodeOptions:
    """Options of the command line."""

    algorithm: str | None  # what the checkpoint must be of
    env: str | None  # None: the checkpoint's
    episodes: int
    steps: int | None  # in place of episodes
    overrides: tuple[tuple[str, Any], ...] = ()  # config keys


def evaluate_episodes(checkpoint: Path, file: Path, options: EpisodeOptions) -> dict[str, Any]:
    """Run, print and write to ``file`` the returns and lengths of episodes.

    Raises:
        ValueError: the checkpoint is of another algorithm, or its environment is not known here.
    """
    import ray

    from rapo_rllib.checkpoints.trained_config import trained_algorithm
    from rapo_rllib.cli.dotted_keys import with_overrides
    from rapo_rllib.cli.train.run import prepare

    prepare(Path("here"))  # the modules of a job in this folder can be imported
    cls, config = trained_algorithm(checkpoint)
    if options.algorithm is not None and options.algorithm.upper() != cls.__name__.upper():
        raise ValueError(f"--algo {options.algorithm}: the checkpoint is of {cls.__name__}")
    with_overrides(config, (*options.overrides, *((("env", options.env),) if options.env else ())))
    unit, duration = ("episodes", options.episodes) if options.steps is None else ("timesteps", options.steps)
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
        found = _evaluated(checkpoint, config)
    finally:
        if started_here:
            ray.shutdown()
    found = {"checkpoint": str(checkpoint), "algorithm": cls.__name__, "env": str(config.env), **found}
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for key, value in found.items():
        typer.echo(f"{key:<22} {value:.3f}" if isinstance(value, float) else f"{key:<22} {value}")
    typer.echo(f"The numbers are in {file}.")
    return found


def _evaluated(checkpoint: Path, config: AlgorithmConfig) -> dict[str, Any]:
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
    names = ("num_episodes", "num_env_steps_sampled")
    kept: dict[str, Any] = {name: int(measured[name]) for name in names if name in measured}
    for name in ("episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean"):
        if name in measured and math.isfinite(measured[name]):
            kept[name] = float(measured[name])
    return kept
