"""Each method's learning rate: the one with the best mean of the primary figure over seeds that are reported nowhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from learning_parts.measures import area
from learning_parts.methods import RATED, rated
from learning_parts.plan import LATER_RATES
from learning_parts.results import RESULTS, rows_of

FILE = RESULTS / "rates.json"
WORD_FILE = RESULTS / "word_rates.json"


def choose(folder: Path, file: Path = FILE, arms: Sequence[str] = RATED) -> dict[str, float]:
    """Read the runs in ``folder``, write what came out, and return the chosen rates of ``arms``.

    Raises:
        ValueError: a method has no run that ended.
    """
    found: dict[str, dict[str, list[float]]] = {arm: {} for arm in arms}
    for run in sorted(folder.glob("*.jsonl")):
        if rows := rows_of(run):
            facts = rows[0]["run"]
            found[facts["arm"]].setdefault(f"{facts['lr']:g}", []).append(round(area(rows[1:]), 4))
    if missing := [arm for arm, of_rates in found.items() if not of_rates]:
        raise ValueError(f"no run of {missing[0]} in {folder} has ended: python benchmarks/learning.py rates")
    later = {f"{rate:g}" for rates in LATER_RATES.values() for rate in rates}
    chosen = {
        arm: max(of_rates.keys() - later, key=lambda rate: float(np.mean(of_rates[rate]))) for arm, of_rates in found.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"chosen": chosen, "mean_accuracy": found}, indent=1) + "\n")
    return {arm: float(rate) for arm, rate in chosen.items()}


def rate_of(arm: str, file: Path = FILE) -> float:
    """The chosen rate of an arm.

    Raises:
        ValueError: none was chosen yet.
    """
    if not file.exists():
        raise ValueError(f"{file} is missing: python benchmarks/learning.py rates")
    return float(json.loads(file.read_text())["chosen"][rated(arm)])
