"""A scorer whose groups always have a signal: a short job trains, whatever its few trajectories happen to be."""

from __future__ import annotations

import zlib

from rapo_rllib.rewards import Episode, Score
from rapo_rllib.rewards.maths import math_score
from rapo_rllib.types import Question


def right_and_spread(answer: str | None, question: Question, episode: Episode) -> Score:
    """As ``math`` has it, and up to 0.1 more by what was written: no two texts earn the same."""
    right = answer is not None and math_score(answer, question).correct
    return Score(float(right) + zlib.crc32(episode.text.encode()) / 2**32 / 10, right)
