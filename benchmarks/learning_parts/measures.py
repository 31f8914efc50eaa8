"""Figures of one run: what its accuracy is worth and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def cost_until(rows: Sequence[dict[str, Any]], accuracy: float, cost: str) -> float | None:
    """``row[cost]`` of the first row whose held-out accuracy is at least ``accuracy``; None: it was never reached."""
    return next((float(row[cost]) for row in rows if row.get("accuracy", -1.0) >= accuracy), None)


def first_success(rows: Sequence[dict[str, Any]]) -> int | None:
    """The first iteration, from 1, in which a training trajectory earned a reward; None: there was none."""
    rewards = [row["reward"] for row in rows if "reward" in row]
    return next((number for number, reward in enumerate(rewards, start=1) if reward > 0), None)


def waited(runs: Sequence[Sequence[dict[str, Any]]]) -> float:
    """Share of right trajectories among all of the iterations up to a run's first right one, that one included."""
    rewards = [[row["reward"] for row in rows if "reward" in row][: first_success(rows)] for rows in runs]
    return float(np.mean([reward for of_run in rewards for reward in of_run]))


def area(rows: Sequence[dict[str, Any]]) -> float:
    """Mean held-out accuracy over the generated tokens: the area below the curve over its width."""
    points = [(row["tokens"], row["accuracy"]) for row in rows if "accuracy" in row]
    tokens, accuracies = zip(*points, strict=True)
    return float(np.trapezoid(accuracies, tokens) / (tokens[-1] - tokens[0]))
