"""A scorer under which every group has a signal: half of the trajectories are worth something, whatever they say."""

from __future__ import annotations

from typing import Any


def every_length(answer: str | None, question: Any, episode: Any) -> float:
    """1 for texts of an odd length."""
    return float(len(episode.text) % 2)
