"""A user's own text environment and callback. Remote processes import them from here: test modules are not on their path."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from rapo_rllib.envs.base import AnyText
from rapo_rllib.weights.dtensor import full_tensor


class Letters(gymnasium.Env[str, str]):
    """Asks for a sentence about a number; the reward, the share of the letter e, differs between samples of any model."""

    def __init__(self, env_config: dict[str, Any] | None = None) -> None:
        self.observation_space = AnyText()
        self.action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"Write a sentence about the number {seed}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", action.count("e") / max(len(action), 1), True, False, {}


def log_episode(episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
    """A user's callback: the view of a trajectory is an episode of texts."""
    (action,) = episode.get_actions()
    trajectory = episode.get_infos(-1)["trajectory"]
    assert isinstance(action, str)
    assert trajectory.text.startswith(action)
    assert episode.get_return() == pytest.approx(trajectory.reward)
    metrics_logger.log_value("episodes_seen", 1, reduce="sum")
    metrics_logger.log_value("sampled_by", trajectory.policy_version, reduce="max")


def weights(learner: Any) -> np.ndarray:
    """One matrix of a learner's policy; where it is sharded, all learners must be asked."""
    return full_tensor(learner.policy.language_model.model.layers[3].mlp.up_proj.weight.detach()).numpy().copy()
