"""Reward functions of a user, found by import path in ``test_own.py``."""

import numpy

from rapo_rllib.rewards import Episode, Score
from rapo_rllib.types import Question

not_callable = 3


def exact(answer: str | None, question: Question, episode: Episode) -> float:
    return float(answer == question.answer)


def short_and_right(answer: str | None, question: Question, episode: Episode, limit: int = 5) -> dict[str, float]:
    return {"correct": float(answer == question.answer), "length": -0.5 if len(episode.text) > limit else 0.0}


def seen(answer: str | None, question: Question, episode: Episode) -> Score:
    calls = [(step.tool, step.observation, step.tool_error) for step in episode.steps]
    return Score(0.25, calls == [("echo", "a!", None), (None, "", None)])


def numpy_number(answer: str | None, question: Question, episode: Episode) -> float:
    return numpy.float32(0.5)


def returns_nan(answer: str | None, question: Question, episode: Episode) -> float:
    return float("nan")


def returns_text(answer: str | None, question: Question, episode: Episode) -> str:
    return "1"


def takes_a_taken_name(answer: str | None, question: Question, episode: Episode) -> dict[str, float]:
    return {"format": 1.0}


def fails(answer: str | None, question: Question, episode: Episode) -> float:
    raise KeyError("my own mistake")


def two_arguments(answer: str | None, question: Question) -> float:
    return 1.0


class Counting:
    """Made once with its options, for all environments of a process."""

    made = 0

    def __init__(self, worth: float) -> None:
        Counting.made += 1
        self.worth = worth

    def __call__(self, answer: str | None, question: Question, episode: Episode) -> float:
        return self.worth
