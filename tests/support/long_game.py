"""A text game of many rooms, one after the other: rules, a case behind them, and a history far longer than an embedder reads.

In every room one act leads on; which one, only the room tells. A hunt visits rooms in an order of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium

from rapo_rllib.envs.base import AnyText, SeedQuestions
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import ExpertTrajectory

RULES = (
    "You are in an old house of many rooms, which are visited one after the other. In each room something stands in your way, "
    "and one act alone leads on to the next room; anything else costs you a turn. Write one act at a time, in plain words, "
    "without an explanation. The house is dark, and nobody will help you. You win when you reach the roof. "
)
ROOMS = {
    "boiler room": ("Steam hisses out of a brass valve and fills the whole room.", "turn the brass valve"),
    "library": ("A tall ladder leans on the shelves, and the hatch is far above.", "climb the ladder"),
    "kitchen": ("A hungry dog growls beside a bowl of bones.", "feed the dog a bone"),
    "cellar": ("It is pitch dark, and a lantern hangs at the wall.", "light the lantern"),
    "chapel": ("A heavy rope dangles from the bell above you.", "pull the rope"),
    "greenhouse": ("Thick vines have grown over the door, and a sickle lies in the soil.", "cut the vines"),
    "armoury": ("A rusty suit of armour blocks the gate with its spear.", "push over the armour"),
    "music room": ("The piano waits, and a sheet shows three notes.", "play the three notes"),
    "bathroom": ("The tub overflows, and its plug is stuck in the drain.", "pull out the plug"),
    "nursery": ("A doll weeps on the floor beside an empty cradle.", "put the doll into the cradle"),
    "study": ("A letter with a red seal lies on the desk.", "break the red seal"),
    "gallery": ("One of the portraits hangs upside down.", "turn the portrait around"),
    "laboratory": ("Two flasks bubble, a green and a blue one, before an empty beaker.", "mix both flasks"),
    "stable": ("A horse kicks at the bolted gate of its box.", "unbolt the gate"),
    "dining hall": ("A feast is laid out, and one of the candles has gone out.", "light the candle"),
    "observatory": ("The telescope points at the floor, and the moon is up.", "point the telescope at the moon"),
    "dungeon": ("A prisoner in chains begs you for water.", "give the prisoner water"),
    "theatre": ("The curtain is down, and a crank stands beside the stage.", "wind the crank"),
}


class LongGame(gymnasium.Env[str, str]):
    """One house per seed.

    Args:
        env_config: ``tags``: acts stand in ``<act>``; else they are the whole turn. ``rooms``: of a house. ``shuffled``: in an
            order of its own; else all houses have the same order, and begin somewhere in it.
    """

    def __init__(self, env_config: dict[str, Any] | None = None) -> None:
        options = {"tags": False, "rooms": 12, "shuffled": True, **(env_config or {})}
        self._tags, self._num_rooms, self._shuffled = bool(options["tags"]), int(options["rooms"]), bool(options["shuffled"])
        self.tool_tags = ("act",) if self._tags else ()
        self.observation_space = self.action_space = AnyText(100_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        rng, rooms = random.Random(seed), list(ROOMS)
        first = rng.randrange(len(rooms))
        self.left = (rng.sample(rooms, len(rooms)) if self._shuffled else [*rooms[first:], *rooms[:first]])[: self._num_rooms]
        return f"{RULES}{self._look()}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        act = action.partition("<act>")[2].partition("</act>")[0] if self._tags else action
        if act.strip() != ROOMS[self.left[0]][1]:
            return f"Nothing happens. {self._look()}", 0.0, False, False, {}
        self.left.pop(0)
        if self.left:
            return f"That worked. The door behind you falls shut. {self._look()}", 0.0, False, False, {}
        return "You are on the roof. You win!", 1.0, True, False, {"correct": True}

    def _look(self) -> str:
        return f"You are in the {self.left[0]}. {ROOMS[self.left[0]][0]}"

    def written(self, act: str) -> str:
        """An act as the game reads it."""
        return f"<act>{act}</act>" if self._tags else act

    @classmethod
    def questions(cls, env_config: dict[str, Any], split: str) -> SeedQuestions:
        return SeedQuestions(12) if split == "train" else SeedQuestions(4, offset=100)

    @classmethod
    def expert_trajectories(cls, env_config: dict[str, Any]) -> Iterator[ExpertTrajectory]:
        game = cls(env_config)
        for question in cls.questions(env_config, "train"):
            text, _ = game.reset(seed=question.seed)
            steps = []
            while game.left:
                act = game.written(ROOMS[game.left[0]][1])
                steps.append(act + render_observation(game.step(act)[0], ProtocolSettings()))
            yield ExpertTrajectory(replace(question, text=text), tuple(steps), 1.0, "house/expert")
