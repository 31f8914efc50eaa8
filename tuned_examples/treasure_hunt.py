"""A text game as a user would write one: an environment of your own for RAPO, in one file. See docs/environments.md.

The policy walks through a house, fetches a key and opens a chest. It acts by ``<act>go cellar</act>``, ``<act>take key</act>``
and ``<act>open chest</act>``; the game answers what happened, and gives points on the way.

    rllib train file tuned_examples/rapo_treasure_hunt.yaml
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium

from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.protocol.steps import parse_step, render_observation
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import ExpertTrajectory

ROOMS = ("kitchen", "cellar", "attic", "garden", "library", "bathroom", "garage", "bedroom")
PROTOCOL = ProtocolSettings()
TRAIN, TEST = 2000, 200


class TreasureHunt(gymnasium.Env[str, str]):
    """One hunt per seed.

    Args:
        env_config: ``max_moves``, after which the game is lost; ``hints``, whether a note says where things are.
    """

    tool_tags = ("act",)  # a generated step ends at </act>

    def __init__(self, env_config: dict[str, Any] | None = None) -> None:
        options = {"max_moves": 8, "hints": True, **(env_config or {})}
        self.max_moves, self.hints = int(options["max_moves"]), bool(options["hints"])
        self.observation_space = gymnasium.spaces.Text(max_length=2000, min_length=0, charset=string.printable)
        self.action_space = gymnasium.spaces.Text(max_length=20_000, min_length=0, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Hide key and chest where the seed says."""
        super().reset(seed=seed)
        rng = random.Random(int(self.np_random.integers(2**31)) if seed is None else seed)
        self.rooms = rng.sample(ROOMS, 4)
        self.room, self.key_room, self.chest_room = "hall", *rng.sample(self.rooms, 2)
        self.has_key, self.moves, self.reached = False, 0, set[str]()
        note = f" A note says: key in the {self.key_room}, chest in the {self.chest_room}." if self.hints else ""
        return (
            f"You are in the hall. There are doors to the {', '.join(self.rooms)}.{note} Moves: go ROOM, take key, open chest.",
            {},
        )

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play the move that a generated step makes; a step without a move ends the game."""
        move = parse_step(action, PROTOCOL, self.tool_tags).tool_input
        if move is None:
            return "", 0.0, True, False, {"correct": False, "format_ok": False}
        self.moves += 1
        happened = self._play(move.lower().split())
        won = "open" in self.reached
        lost = not won and self.moves >= self.max_moves
        info = {"tool": "act", "correct": won, "end": "answer" if won else "tool_limit"}
        return happened, self._new_points(), won, lost, info

    def _play(self, words: list[str]) -> str:
        """Make a move; returns what happens."""
        match words:
            case ["go", room] if room in self.rooms:
                self.room = room
                return self._look()
            case ["take", "key"] if self.room == self.key_room and not self.has_key:
                self.has_key = True
                return "You have the key."
            case ["open", "chest"] if self.room == self.chest_room and self.has_key:
                self.reached.add("open")
                return "The chest is open. You win!"
        return f"You cannot. You are in the {self.room}. Moves: go ROOM, take key, open chest."

    def _new_points(self) -> float:
        """A quarter each for reaching the key, taking it, carrying it to the chest, and opening that; once each."""
        before = len(self.reached - {"open"})
        self.reached |= {"key room"} if self.room == self.key_room else set()
        self.reached |= {"key"} if self.has_key else set()
        self.reached |= {"chest room"} if self.has_key and self.room == self.chest_room else set()
        return (len(self.reached) - before) / 4

    def _look(self) -> str:
        key = " There is a key." if self.room == self.key_room and not self.has_key else ""
        chest = " There is a chest." if self.room == self.chest_room else ""
        return f"You are in the {self.room}.{key}{chest}"

    @classmethod
    def questions(cls, env_config: dict[str, Any], split: str) -> SeedQuestions:
        """Which hunts are for training, and which are held out. Optional: without it, hunts are numbered from 0."""
        return SeedQuestions(TRAIN) if split == "train" else SeedQuestions(TEST, offset=TRAIN)

    @classmethod
    def expert_trajectories(cls, env_config: dict[str, Any]) -> Iterator[ExpertTrajectory]:
        """How to win the training hunts: the Step-Trace Buffer is built from this. Optional, too."""
        game = cls(env_config)
        for question in cls.questions(env_config, "train"):
            text, _ = game.reset(seed=question.seed)
            steps = []
            for move in (f"go {game.key_room}", "take key", f"go {game.chest_room}", "open chest"):
                written = f"<act>{move}</act>"
                observation, *_ = game.step(written)
                steps.append(written + render_observation(observation, PROTOCOL))
            yield ExpertTrajectory(replace(question, text=text), tuple(steps), 1.0, "treasure_hunt/expert")
