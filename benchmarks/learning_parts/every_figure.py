"""Every figure of the raw results in one place, by the names that pages and documents have for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from learning_parts import equal
from learning_parts.packaged_pairs import packaged, pairs
from learning_parts.pilot import pilot_figures
from learning_parts.results import PILOT, TIMED, read, summary


def all_figures(results: Path) -> dict[str, Any]:
    """Both studies, the pilot, the packaged jobs, the habits of the base policies.

    Args:
        results: folder of the raw results.
    """
    habits = json.loads((results / "policies" / "habits.json").read_text(encoding="utf-8"))
    found = summary(read(results), read(results, TIMED)) | {
        "packaged": packaged(results),
        "habits": habits,
        "pilot": pilot_figures(read(results, PILOT)),
        "equal": equal.figures(read(results, equal.KIND)),
        "pairs": pairs(results / "pairs"),
        "other": {},
    }
    if "rapo_minus_grpo" in found["pairs"]:
        found["words"]["best_minus_grpo"] = found["pairs"]["rapo_minus_grpo"]
    for calls, of_calls in found["equal"].items():
        if "best_minus_luffy" in of_calls:
            found["chains"].setdefault(calls, {})["best_minus_luffy"] = of_calls["best_minus_luffy"]
        if "best_minus_sft_grpo" in of_calls:
            found["other"][calls] = {"best_minus_sft_grpo": of_calls["best_minus_sft_grpo"]}
    return found
