"""The pilot: what each option reaches by seed, and what it costs; raw results of kind ``pilot``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learning_parts.arms import TARGET
from learning_parts.measures import area, cost_until


def pilot_figures(study: Any) -> list[dict[str, Any]]:
    """List arms best first, for each number of calculations; nothing is tested on so few seeds."""
    found = [
        {
            "calls": calls,
            "arm": arm,
            "seeds": sorted(runs),
            "mean_accuracy": [round(area(runs[seed]), 4) for seed in sorted(runs)],
            "accuracy": [runs[seed][-1]["accuracy"] for seed in sorted(runs)],
            "tokens_to_half": [cost_until(runs[seed], TARGET, "tokens") for seed in sorted(runs)],
            "train_s": [runs[seed][-1]["train_s"] for seed in sorted(runs)],
        }
        for (calls, arm), runs in study.items()
    ]
    return sorted(found, key=lambda one: (one["calls"], -sum(one["mean_accuracy"]) / len(one["seeds"])))


def pilot_table(figures: Sequence[Mapping[str, Any]]) -> str:
    """Write the figures as a table of Markdown."""
    head = "| calculations | arm | mean over the budget by seed, % | at the end, % | tokens to 50 % | training seconds |"
    lines = [head, "|" + " --- |" * 6]
    for one in figures:
        means, ends = (", ".join(f"{100 * share:.0f}" for share in one[name]) for name in ("mean_accuracy", "accuracy"))
        tokens = ", ".join("never" if cost is None else f"{cost:,.0f}" for cost in one["tokens_to_half"])
        seconds = ", ".join(f"{value:.0f}" for value in one["train_s"])
        lines.append(f"| {one['calls']} | `{one['arm']}` | {means} | {ends} | {tokens} | {seconds} |")
    return "\n".join(lines)
