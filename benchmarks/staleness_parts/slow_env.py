"""A task whose tools are slow now and then: what keeps engines and learner waiting for one trajectory."""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium

from rapo_rllib.envs.base import AnyText

CALLS = 2  # tool calls of a trajectory


class SlowTools(gymnasium.Env[str, str]):
    """Two calls of a tool, then an answer; a call takes ``fast_s``, or with probability ``slow_share`` ``slow_s``.

    The reward is the share of the letter e in what was written, which differs between samples of any model.
    """

    def __init__(self, env_config: dict[str, Any] | None = None) -> None:
        self.observation_space = AnyText()
        self.action_space = AnyText()
        options = env_config or {}
        self._fast_s, self._slow_s, self._slow_share = (float(options[key]) for key in ("fast_s", "slow_s", "slow_share"))
        self._rng = random.Random(f"{options.get('seed')}/{id(self)}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Ask."""
        super().reset(seed=seed)
        self._calls = 0
        return f"Write about the number {seed}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a while."""
        reward = action.count("e") / max(len(action), 1)
        if self._calls == CALLS:
            return "", reward, True, False, {}
        self._calls += 1
        time.sleep(self._slow_s if self._rng.random() < self._slow_share else self._fast_s)
        return "Go on.", reward, False, False, {}
