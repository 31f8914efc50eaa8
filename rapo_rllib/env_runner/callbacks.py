"""RLlib's episode callbacks for trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback

from rapo_rllib.env_runner.episodes import episode_view
from rapo_rllib.types import TrajectoryGroup


def call_episode_callbacks(env_runner: Any, callbacks: Sequence[RLlibCallback], groups: Sequence[TrajectoryGroup]) -> None:
    """Call ``on_episode_end`` for every trajectory, then ``on_sample_end``, on the env runner that sampled them."""
    config = env_runner.config
    listens = config.callbacks_on_episode_end or config.callbacks_on_sample_end
    if not listens and all(type(callback) is RLlibCallback for callback in callbacks):
        return
    common = {"env_runner": env_runner, "metrics_logger": env_runner.metrics}
    episodes = [episode_view(group.question, t) for group in groups for t in group.trajectories]
    for episode in episodes:
        make_callback(
            "on_episode_end",
            callbacks_objects=list(callbacks),
            callbacks_functions=config.callbacks_on_episode_end,
            kwargs={**common, "episode": episode, "env": None, "env_index": 0, "rl_module": None},
        )
    make_callback(
        "on_sample_end",
        callbacks_objects=list(callbacks),
        callbacks_functions=config.callbacks_on_sample_end,
        kwargs={**common, "samples": episodes},
    )
