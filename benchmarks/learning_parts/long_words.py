"""SmolLM2 on word problems of three and four operations, with single steps of the solver and without: equal_traces_plan.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learning_parts.measures import area
from learning_parts.results import Study
from learning_parts.statistics import mean_interval, paired_difference
from learning_parts.word_run import WordRun

ARMS = ("grpo", "word_steps")
STEPS = (3, 4)  # operations of a problem
SEEDS = 24  # seed s begins with policy s modulo 3
TOKENS = 30_000  # generated in training before a run ends
RATES = (1e-5, 2e-5, 4e-5)
RATE_SEEDS = (2000, 2001, 2002)  # reported nowhere else
EVALUATED, RATE_EVALUATED, INTERVAL = (
    500,
    200,
    4,
)  # held-out questions, of what counts and of the rates, every so many iterations
KIND, CALLS = "long_words", 4  # of the raw results


def rate_runs(found: Sequence[Path], folder: Path) -> list[WordRun]:
    """List the runs that the two rates are chosen by."""
    return [_run(arm, seed, rate, found, folder, RATE_EVALUATED) for rate in RATES for seed in RATE_SEEDS for arm in ARMS]


def runs(found: Sequence[Path], chosen: dict[str, float], folder: Path) -> list[WordRun]:
    """List the runs that count, seed by seed."""
    return [_run(arm, seed, chosen[arm], found, folder) for seed in range(SEEDS) for arm in ARMS]


def figures(study: Study) -> dict[str, Any]:
    """Mean held-out accuracy over the budget, and at the end; ours minus GRPO's, paired by seed."""
    of = {arm: study.get((CALLS, arm), {}) for arm in ARMS}
    if any(len(of_arm) < 2 for of_arm in of.values()):
        return {}
    means = {arm: {seed: area(rows) for seed, rows in of_arm.items()} for arm, of_arm in of.items()}
    ends = {arm: {seed: rows[-1]["accuracy"] for seed, rows in of_arm.items()} for arm, of_arm in of.items()}
    ours, base = ARMS[1], ARMS[0]
    return {
        "best_minus_grpo": paired_difference(means[ours], means[base]),
        "best_minus_grpo_at_the_end": paired_difference(ends[ours], ends[base]),
        **{arm: dict(zip(("mean", "low", "high"), mean_interval(list(means[arm].values())), strict=True)) for arm in ARMS},
    }


def _run(arm: str, seed: int, lr: float, found: Sequence[Path], folder: Path, evaluated: int = EVALUATED) -> WordRun:
    policy, of_task = found[seed % len(found)], {"calls": CALLS, "steps": STEPS, "evaluated": evaluated, "attempted": 0}
    return WordRun(arm, seed, lr, str(policy), str(folder), TOKENS, INTERVAL, **of_task)
