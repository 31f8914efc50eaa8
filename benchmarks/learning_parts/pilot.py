"""The table of the pilot: each option's mean over the budget by seed, and what it cost; raw results of kind ``pilot``."""

from __future__ import annotations

from learning_parts.measures import area, cost_until
from learning_parts.plan import TARGET
from learning_parts.results import Study


def pilot_table(study: Study) -> str:
    """Best first, for each number of calculations; nothing is tested on so few seeds."""
    head = "| calculations | arm | mean over the budget by seed, % | at the end, % | tokens to 50 % | training seconds |"
    lines = [head, "|" + " --- |" * 6]
    for (calls, arm), runs in sorted(study.items(), key=lambda item: (str(item[0][0]), -_mean(item[1]))):
        rows = [runs[seed] for seed in sorted(runs)]
        means = ", ".join(f"{100 * area(run):.0f}" for run in rows)
        ends = ", ".join(f"{100 * run[-1]['accuracy']:.0f}" for run in rows)
        costs = [cost_until(run, TARGET, "tokens") for run in rows]
        tokens = ", ".join("never" if cost is None else f"{cost:,.0f}" for cost in costs)
        seconds = ", ".join(f"{run[-1]['train_s']:.0f}" for run in rows)
        lines.append(f"| {calls} | `{arm}` | {means} | {ends} | {tokens} | {seconds} |")
    return "\n".join(lines)


def _mean(runs: dict[int, list[dict[str, float]]]) -> float:
    return sum(area(run) for run in runs.values()) / len(runs)
