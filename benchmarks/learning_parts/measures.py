"""Figures of one run: diversity of its rollouts, who was right, what its accuracy is worth and what it cost."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def newest_transcripts(folder: Path) -> list[dict[str, Any]]:
    """The trajectories of the last iteration that wrote any."""
    newest = max(folder.glob("*.jsonl"))
    return [json.loads(line) for line in newest.read_text(encoding="utf-8").splitlines()]


def diversity(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Distinct trajectories of a group over its size, mean over groups, on-policy ones and all.

    Two trajectories are the same if the policy wrote the same tokens; what was retrieved for them does not count.
    """
    groups: dict[int, list[tuple[bool, tuple[int, ...]]]] = defaultdict(list)
    for row in rows:
        written = tuple(token for token, kind in zip(row["token_ids"], row["kinds"], strict=True) if kind == 0)
        groups[row["group"]].append((bool(row["retrievals"]), written))
    own = [[written for retrieved, written in group if not retrieved] for group in groups.values()]
    every = [[written for _, written in group] for group in groups.values()]
    return {"diversity_on_policy": _distinct(own), "diversity": _distinct(every)}


def right(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Share of trajectories that earn a reward: of those without anything retrieved, and of those with, where there are any."""
    kinds = {"right_on_policy": False, "right_with_retrieval": True}
    rewards = {name: [row["reward"] > 0 for row in rows if bool(row["retrievals"]) == kind] for name, kind in kinds.items()}
    return {name: float(np.mean(values)) for name, values in rewards.items() if values}


def _distinct(groups: Sequence[Sequence[Any]]) -> float:
    shares = [len(set(group)) / len(group) for group in groups if group]
    return float(np.mean(shares)) if shares else 0.0


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


def solved_once(groups: Sequence[Sequence[bool]]) -> float:
    """pass@k: share of the questions that any of their k attempts solves."""
    return float(np.mean([any(group) for group in groups]))
