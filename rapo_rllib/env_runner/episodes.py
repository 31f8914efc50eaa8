"""Trajectories as RLlib's callbacks expect them: ``on_episode_end`` gets a ``SingleAgentEpisode`` of texts."""

from __future__ import annotations

from typing import Any

from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rapo_rllib.types import Question, Trajectory


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
