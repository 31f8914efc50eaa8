"""The letters environment with few questions, so that epochs are short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from letters_env import Letters

from rapo_rllib.types import ExpertTrajectory, Question


class FewLetters(Letters):
    """``env_config["num_questions"]`` of them. Correct is a sentence with more than ``correct_above`` (0.09) of the letter e.

    That is about half of them.
    """

    def __init__(self, env_config: dict[str, Any] | None = None) -> None:
        super().__init__(env_config)
        self._correct_above = (env_config or {}).get("correct_above", 0.09)

    @classmethod
    def questions(cls, env_config: dict[str, Any], split: str) -> Sequence[Question]:
        """The same for both splits."""
        return [Question(id=f"{split}-{index}", text="", seed=index) for index in range(env_config["num_questions"])]

    @classmethod
    def expert_trajectories(cls, env_config: dict[str, Any]) -> Iterator[ExpertTrajectory]:
        """Somebody who has written about the same numbers."""
        for question in cls.questions(env_config, "train"):
            text = f"Write a sentence about the number {question.seed}."
            asked = Question(id=question.id, text=text, seed=question.seed)
            yield ExpertTrajectory(asked, (f"See number {question.seed}, eh?",), 1.0, "writer")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"correct": reward > self._correct_above, "end": "answer"}
