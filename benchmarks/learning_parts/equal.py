"""The second study: what the same traces are worth in each way to use them; ``benchmarks/equal_traces_plan.md`` says why."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from learning_parts.arms import TARGET
from learning_parts.measures import area, cost_until
from learning_parts.results import Runs, Study
from learning_parts.statistics import holm, mean_interval, paired_difference

ARMS = (
    *("grpo", "sft_grpo", "luffy", "rapo", "steps", "sft_steps", "sft_grpo_other", "sft_steps_other"),  # 24 seeds
    *("grpo_explores", "luffy_grpo", "rapo_hidden", "rapo_other", "steps_other"),  # 6
)
OTHER = tuple(arm for arm in ARMS if arm.endswith("_other"))  # with traces of other questions alone
CALLS = (3, 4)
POLICIES = 6  # seed s begins with policy s modulo 6
KIND = "equal"
# the comparisons that decide: ours, theirs
DECIDING = {
    "best_minus_luffy": ("sft_steps", "luffy"),
    "steps_minus_luffy": ("steps", "luffy"),
    "steps_minus_luffy_grpo": ("steps", "luffy_grpo"),
    "best_minus_sft_grpo": ("sft_steps_other", "sft_grpo_other"),
}
LEVEL, FEWEST = -0.03, 20  # an interval that begins above this is level; pairs that a conclusion needs


def figures(study: Study) -> dict[str, Any]:
    """Means, and differences paired by seed: to GRPO of the arms with own traces, to fine-tuning then GRPO of the others."""
    found: dict[str, Any] = {}
    for calls in CALLS:
        areas = {
            arm: {seed: area(rows) for seed, rows in study[calls, arm].items()}
            for arm in ARMS
            if len(study.get((calls, arm), {})) > 1
        }
        if not areas:
            continue
        pairs = {arm: ("sft_grpo_other" if arm in OTHER else "grpo") for arm in areas if arm not in ("grpo", "sft_grpo_other")}
        minus = {arm: paired_difference(areas[arm], areas[base]) for arm, base in pairs.items() if base in areas}
        adjusted = holm({arm: one["p"] for arm, one in minus.items()})
        deciding = {
            name: _decided(study[calls, ours], study[calls, theirs])
            for name, (ours, theirs) in DECIDING.items()
            if ours in areas and theirs in areas
        }
        arms = {arm: _of_arm(study[calls, arm]) for arm in areas}
        found[str(calls)] = {
            "arms": arms,
            "minus": {arm: {**one, "p_holm": adjusted[arm]} for arm, one in minus.items()},
            **deciding,
        }
    return found


def _of_arm(of_seeds: Runs) -> dict[str, Any]:
    """Mean over the budget with its interval, accuracy at the end, seconds, and tokens until 50 %."""
    mean, low, high = mean_interval([area(rows) for rows in of_seeds.values()])
    half = [cost_until(rows, TARGET, "tokens") for rows in of_seeds.values()]
    median = float(np.median([np.inf if cost is None else cost for cost in half]))
    return {
        **{"mean": mean, "low": low, "high": high, "n": len(of_seeds)},
        "accuracy": float(np.mean([rows[-1]["accuracy"] for rows in of_seeds.values()])),
        "train_s": float(np.median([rows[-1]["train_s"] for rows in of_seeds.values()])),
        "reached_half": sum(cost is not None for cost in half),
        "tokens_to_half": None if np.isinf(median) else median,
    }


def _decided(ours: Runs, theirs: Runs) -> dict[str, Any]:
    """A comparison that decides: paired by seed, by base policy, and of tokens until 50 %, censored at a run's end."""
    of_ours, of_theirs = ({seed: area(rows) for seed, rows in of.items()} for of in (ours, theirs))
    whole = paired_difference(of_ours, of_theirs)
    both = of_ours.keys() & of_theirs.keys()
    by_policy = {
        policy: float(np.mean([of_ours[seed] - of_theirs[seed] for seed in both if seed % POLICIES == policy]))
        for policy in sorted({seed % POLICIES for seed in both})
    }
    verdict = (
        "too few pairs" if whole["n"] < FEWEST else "ahead" if whole["low"] > 0 else "level" if whole["low"] > LEVEL else "no"
    )
    logrank = stats.logrank(_censored(ours), _censored(theirs)).pvalue if len(ours) > 1 else 1.0
    return {**whole, "by_policy": by_policy, "logrank_p": float(logrank), "verdict": verdict}


def _censored(of_seeds: Runs) -> stats.CensoredData:
    costs = [(cost_until(rows, TARGET, "tokens"), rows[-1]["tokens"]) for rows in of_seeds.values()]
    return stats.CensoredData(
        uncensored=[max(cost, 1.0) for cost, _ in costs if cost is not None], right=[end for cost, end in costs if cost is None]
    )
