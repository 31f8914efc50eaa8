"""A gymnasium environment that gives time for Ctrl-C."""

from __future__ import annotations

import time
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv


class Slow(CartPoleEnv):
    """CartPole, which needs a tenth of a second for each new episode."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        super().__init__()

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return super().reset(**kwargs)
