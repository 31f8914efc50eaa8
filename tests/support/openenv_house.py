"""An OpenEnv server for tests, by the package's program: the house of ``long_game``, which pays each step; and ways to fail.

    python openenv_house.py PORT [SESSIONS]

A move ``die`` ends the server, ``hang`` keeps it busy, ``raise`` raises; a reset with ``wall: true`` shows two texts.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import uvicorn
from long_game import ROOMS, LongGame
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from servers import guarded

NUM_ROOMS = 4


class Move(Action):
    """What the player does."""

    message: str
    loudness: int = 1


class Seen(Observation):
    """What the player sees."""

    text: str
    pid: int
    loudness: int = 0


class House(Environment):
    """One player's house."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._game, self._moves = LongGame({"rooms": NUM_ROOMS}), 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Seen:
        self._moves = 0
        return Seen(text=self._game.reset(seed=seed)[0], pid=os.getpid())

    def step(self, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        self._moves += 1
        if action.message == "die":
            os._exit(3)
        if action.message == "hang":
            time.sleep(600)
        if action.message == "raise":
            raise RuntimeError("the floor gives way")
        right = action.message.strip() == ROOMS[self._game.left[0]][1]
        text, _, done, _, _ = self._game.step(action.message)
        return Seen(text=text, pid=os.getpid(), loudness=action.loudness, reward=right / NUM_ROOMS, done=done)

    @property
    def state(self) -> State:
        return State(step_count=self._moves)


if __name__ == "__main__":
    sessions = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    app = create_fastapi_app(House, Move, Seen, max_concurrent_envs=sessions)
    app = guarded(app, os.environ.get("HOUSE_TOKEN"))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
