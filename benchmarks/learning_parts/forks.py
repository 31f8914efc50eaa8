"""What ARPO's forks did: where they were, how unsure the policy was there, and whether branches went another way.

``python benchmarks/learning_parts/forks.py FOLDER`` prints it of a run's transcripts, iteration by iteration.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Rows = Sequence[dict[str, Any]]  # transcripts


def fork_figures(rows: Rows) -> dict[str, Any]:
    """Of the trajectories of one or several iterations, which have ``group`` and, several, ``iteration`` set.

    ``by_step``: of the steps that a fork may write (those behind a tool's result): how many trajectories wrote such a step,
    how many are branches from there, the mean entropy over the step and of its first token in nats, and the share of branches
    that wrote the same tokens as their origin from there on. ``tokens_shared``, ``calls_shared``: shares of generated tokens
    and of tool calls that branches took over and nobody had to do again. ``groups_with_signal``: whose rewards differ.
    """
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row.get("iteration"), row["group"]].append(row)
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for group in groups.values():
        for row in group:
            for index, step in enumerate(row["steps"]):
                entropies = row["entropies"][step["start"] : step["stop"]]
                if index and entropies and step["start"] >= own_start(row):
                    found[index]["entropy"].append(float(np.mean(entropies)))
                    found[index]["first_token"].append(entropies[0])
            if len(row["segments"]) > 1:
                at = sum(step["start"] < own_start(row) for step in row["steps"])
                origin = group[row["segments"][-2][1]]
                found[at]["same"].append(_written(row, own_start(row)) == _written(origin, own_start(row)))
    tokens = [(_written(row), _written(row, own_start(row))) for row in rows]
    calls = [[step["start"] >= own_start(row) for step in row["steps"] if step["tool"]] for row in rows]
    return {
        "by_step": {step: _of_step(values) for step, values in sorted(found.items())},
        "tokens_shared": 1 - sum(len(own) for _, own in tokens) / sum(len(every) for every, _ in tokens),
        "calls_shared": 1 - sum(map(sum, calls)) / max(sum(map(len, calls)), 1),
        "groups_with_signal": float(np.mean([len({row["reward"] for row in group}) > 1 for group in groups.values()])),
    }


def own_start(row: dict[str, Any]) -> int:
    """The first token that a trajectory wrote itself."""
    return int(row["segments"][-1][0]) if len(row["segments"]) > 1 else 0


def _written(row: dict[str, Any], start: int = 0) -> tuple[int, ...]:
    return tuple(token for token, kind in zip(row["token_ids"][start:], row["kinds"][start:], strict=True) if kind == 0)


def _of_step(values: dict[str, list[float]]) -> dict[str, float]:
    return {
        "written": len(values["entropy"]),
        "forks": len(values["same"]),
        "entropy": float(np.mean(values["entropy"])) if values["entropy"] else 0.0,
        "first_token": float(np.mean(values["first_token"])) if values["first_token"] else 0.0,
        "same_as_origin": float(np.mean(values["same"])) if values["same"] else 0.0,
    }


if __name__ == "__main__":
    for file in sorted(Path(sys.argv[1]).glob("iteration_*.jsonl")):
        lines = file.read_text(encoding="utf-8").splitlines()
        print(file.stem, json.dumps(fork_figures([json.loads(line) for line in lines])))
