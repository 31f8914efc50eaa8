"""Rows of all runs to the figures that are reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learning_parts.measures import cost_until, interval, paired_difference
from learning_parts.methods import BASELINE, METHODS, NOISE

COSTS = ("tokens", "train_s", "iteration", "tool_calls")
LATE = 5  # iterations that count as the end of a run


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Rows of a run that has ended; none of one that has not."""
    if not file.exists():
        return []
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return rows if rows and rows[-1].get("done") else []


def all_runs(folder: Path) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """``method -> seed -> rows`` of the runs in ``folder`` that have ended."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for method in METHODS:
        for file in sorted(folder.glob(f"{method}-*.jsonl")):
            seed = file.stem.removeprefix(f"{method}-")
            if seed.isdigit() and (rows := rows_of(file)):
                found.setdefault(method, {})[int(seed)] = rows
    return found


def area(rows: Sequence[dict[str, Any]], budget: float) -> float:
    """Mean held-out accuracy over the budget of generated tokens: the area below the curve over its width."""
    points = [(row["tokens"], row["accuracy"]) for row in rows if "accuracy" in row]
    tokens, accuracies = zip(*points, strict=True)
    return float(np.trapezoid(accuracies, tokens) / budget)


def compare(runs: dict[str, dict[int, list[dict[str, Any]]]], target: float) -> dict[str, Any]:
    """Per method the figures of the last row and of the way there, and their paired differences to GRPO.

    Args:
        runs: of :func:`all_runs`.
        target: held-out accuracy whose cost is asked for.
    """
    found: dict[str, Any] = {name: _figures(of_seed, target) for name, of_seed in runs.items()}
    base = runs.get(BASELINE, {})
    for name, of_seed in runs.items():
        if name != BASELINE and of_seed.keys() & base.keys():
            found[name]["minus_grpo"] = paired_difference(_last(of_seed), _last(base))
            found[name]["mean_accuracy_minus_grpo"] = paired_difference(_areas(of_seed), _areas(base))
    noise = {str(p): found[name]["accuracy_mean"] for name, p in NOISE.items() if name in found}
    return {"methods": found, "noise": noise, "target_accuracy": target}


def _last(of_seed: dict[int, list[dict[str, Any]]]) -> dict[int, float]:
    return {seed: float(rows[-1]["accuracy"]) for seed, rows in of_seed.items()}


def _areas(of_seed: dict[int, list[dict[str, Any]]]) -> dict[int, float]:
    return {seed: area(rows, rows[-1]["tokens"]) for seed, rows in of_seed.items()}


def _figures(of_seed: dict[int, list[dict[str, Any]]], target: float) -> dict[str, Any]:
    last = list(_last(of_seed).values())
    areas = list(_areas(of_seed).values())
    ends = [rows[-1] for rows in of_seed.values()]
    trained = [[row for row in rows if "diversity" in row] for rows in of_seed.values()]
    return {
        "seeds": sorted(of_seed),
        "accuracy_mean": float(np.mean(last)),
        "accuracy_ci": interval(last),
        "mean_accuracy_over_budget": float(np.mean(areas)),
        "mean_accuracy_over_budget_ci": interval(areas),
        **{key: float(np.mean([end[key] for end in ends])) for key in ("rollout_s", "train_s", "tokens", "tool_calls")},
        "rollout_seconds": float(np.mean([end["rollout_s"] for end in ends])),
        "diversity": float(np.mean([row["diversity"] for rows in trained for row in rows])),
        "diversity_on_policy": float(np.mean([row["diversity_on_policy"] for rows in trained for row in rows])),
        **{f"{key}_at_the_end": _late(of_seed, key) for key in ("right_on_policy", "right_with_retrieval")},
        "until_target": {cost: _until(of_seed, target, cost) for cost in COSTS},
    }


def _late(of_seed: dict[int, list[dict[str, Any]]], key: str) -> float | None:
    """Mean over seeds and over each one's last ``LATE`` iterations that have it; None: none has."""
    values = [[row[key] for row in rows if key in row][-LATE:] for rows in of_seed.values()]
    return float(np.mean([np.mean(of_run) for of_run in values if of_run])) if any(values) else None


def _until(of_seed: dict[int, list[dict[str, Any]]], target: float, cost: str) -> dict[str, Any]:
    """Seeds that reached it, and the median cost over all seeds; None where half of them never did."""
    costs = [cost_until(rows, target, cost) for rows in of_seed.values()]
    median = float(np.median([float("inf") if value is None else value for value in costs]))
    return {"reached": sum(value is not None for value in costs), "median": None if np.isinf(median) else median}
