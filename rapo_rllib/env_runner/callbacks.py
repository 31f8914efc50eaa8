"""RLlib's episode callbacks for trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rapo_rllib.types import Question, Trajectory, TrajectoryGroup


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


def episode_view(question: Question, trajectory: Trajectory) -> SingleAgentEpisode:
    """One env step per generated step: observations and actions are texts, the whole reward comes with the last step.

    The trajectory itself is in ``infos`` of the last step, under ``"trajectory"``.
    """
    num_steps = max(len(trajectory.steps), 1)
    observations = [question.text, *(step.observation for step in trajectory.steps)]
    observations += [""] * (num_steps + 1 - len(observations))
    ended_early = trajectory.end in ("length", "tool_limit", "error")
    infos: list[dict[str, Any]] = [{} for _ in range(num_steps + 1)]
    infos[-1] = {"trajectory": trajectory, "question": question, "correct": trajectory.correct, "end": trajectory.end}
    rewards: list[Any] = [0.0] * (num_steps - 1) + [trajectory.reward]
    return SingleAgentEpisode(
        observations=observations,
        actions=[step.text for step in trajectory.steps] or [""],
        rewards=rewards,
        infos=infos,
        terminated=not ended_early,
        truncated=ended_early,
        len_lookback_buffer=0,
    )
