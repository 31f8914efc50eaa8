"""A user's own text environment: one-step, no questions of its own, a reward that differs between samples of any model."""

from __future__ import annotations

from typing import Any

import gymnasium

from rapo_rllib.envs.text_space import AnyText


class Letters(gymnasium.Env[str, str]):
    """Asks for a sentence about a number; the more of its characters are the letter e, the better."""

    def __init__(self, env_config: dict[str, Any] | None = None) -> None:
        self.observation_space = AnyText()
        self.action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"Write a sentence about the number {seed}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", action.count("e") / max(len(action), 1), True, False, {}
