"""The second study: what the same traces are worth in each way to use them; ``benchmarks/equal_traces_plan.md`` says why."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from learning_parts.chain_run import ChainRun
from learning_parts.habits import habits
from learning_parts.imitation import Imitation, make_policy
from learning_parts.measures import area, cost_until
from learning_parts.plan import TARGET
from learning_parts.policies import passes
from learning_parts.results import RESULTS, Runs, Study, rows_of
from learning_parts.statistics import holm, mean_interval, paired_difference

MAIN = ("grpo", "sft_grpo", "luffy", "rapo", "steps", "sft_steps", "sft_grpo_other", "sft_steps_other")  # with SEEDS seeds
BESIDE = ("grpo_explores", "luffy_grpo", "rapo_hidden", "rapo_other", "steps_other")  # with FEWER
ARMS = (*MAIN, *BESIDE)
OTHER = tuple(arm for arm in ARMS if arm.endswith("_other"))  # with traces of other questions alone
CALLS = (3, 4)
TOKENS = 24_000  # generated in training before a run ends
DILIGENCES = (0.01, 0.01, 0.05, 0.05, 0.15, 0.4)  # of the base policies: how often they go on by themselves
SEEDS, FEWER = 24, 6  # seed s begins with policy s modulo 6
RATES = (3e-4, 6e-4, 1.2e-3)
WIDER = (1.5e-4, 2.4e-3)  # tried for an arm whose best rate is the first or the last of RATES
RATE_CALLS = 4  # the rates are chosen there, and serve at both
RATE_SEEDS = (2000, 2002)  # of policies 2 and 4; reported nowhere else
KIND = "equal"
POLICIES, CHOSEN = RESULTS / "graded_policies", RESULTS / "equal_rates.json"
TRIED = 4  # seeds of one diligence
# the comparisons that decide: ours, theirs
DECIDING = {
    "best_minus_luffy": ("sft_steps", "luffy"),
    "steps_minus_luffy": ("steps", "luffy"),
    "steps_minus_luffy_grpo": ("steps", "luffy_grpo"),
    "best_minus_sft_grpo": ("sft_steps_other", "sft_grpo_other"),
}
LEVEL, FEWEST = -0.03, 20  # an interval that begins above this is level; pairs that a conclusion needs


def graded_policies(folder: Path = POLICIES) -> list[Path]:
    """Make the six base policies where they are not there yet, each with the first seed that passes the gates.

    Raises:
        ValueError: of one diligence no seed passes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0)), maxtasksperchild=1) as pool:
        return pool.starmap(_graded, [(folder, number) for number in range(len(DILIGENCES))], chunksize=1)


def _graded(folder: Path, number: int) -> Path:
    """The policy of one diligence, on one thread; notes the habits of all that were tried in a file of its own."""
    diligence, note = DILIGENCES[number], folder / f"habits-{number}.json"
    tried: dict[str, dict[str, float]] = json.loads(note.read_text()) if note.exists() else {}
    gates = {"careful": (0.9, 1.0), "goes_on_1": (diligence / 2.5, 2.5 * diligence), "reads_1": (0.85, 1.0)}
    gates["takes_over_1"] = (0.0, 0.15)
    for seed in range(100 + TRIED * number, 100 + TRIED * (number + 1)):
        policy = folder / f"policy-{seed}"
        if policy.name not in tried:
            make_policy(policy, Imitation(seed=seed, diligence=diligence), threads=1)
            tried[policy.name] = habits(policy)
            note.write_text(json.dumps(tried, indent=1) + "\n")
        if passes(tried[policy.name], gates):
            return policy
        shutil.rmtree(policy, ignore_errors=True)
    raise ValueError(f"none of {TRIED} base policies that go on in {diligence:.0%} passes the gates {gates}")


def rate_runs(found: Sequence[Path], folder: Path) -> list[ChainRun]:
    """List the runs that rates are chosen by: all of RATES, and the next one where the best is the first or the last."""
    runs = [_run(arm, seed, RATE_CALLS, rate, found, folder) for arm in ARMS for rate in RATES for seed in RATE_SEEDS]
    means = _means(folder)
    for arm in ARMS:
        of_arm = means.get(arm, {})
        if set(RATES) <= of_arm.keys():
            best = max(RATES, key=of_arm.__getitem__)
            wider = {RATES[0]: WIDER[0], RATES[-1]: WIDER[1]}.get(best)
            runs += [_run(arm, seed, RATE_CALLS, wider, found, folder) for seed in RATE_SEEDS if wider is not None]
    return runs


def choose(folder: Path, file: Path = CHOSEN) -> dict[str, float]:
    """Write the best rate of each arm, beside all means; returns the choice."""
    means = _means(folder)
    chosen = {arm: max(of_arm, key=of_arm.__getitem__) for arm, of_arm in sorted(means.items())}
    every = {arm: {f"{rate:g}": mean for rate, mean in of_arm.items()} for arm, of_arm in sorted(means.items())}
    file.write_text(json.dumps({"chosen": chosen, "mean_accuracy": every}, indent=1) + "\n")
    return chosen


def runs(found: Sequence[Path], chosen: Mapping[str, float], folder: Path) -> list[ChainRun]:
    """List the runs that count, seed by seed, so that all arms have as many wherever they stop."""
    return [
        _run(arm, seed, calls, chosen[arm], found, folder)
        for seed in range(SEEDS)
        for calls in CALLS
        for arm in (ARMS if seed < FEWER else MAIN)
    ]


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
        policy: float(np.mean([of_ours[seed] - of_theirs[seed] for seed in both if seed % len(DILIGENCES) == policy]))
        for policy in sorted({seed % len(DILIGENCES) for seed in both})
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


def _means(folder: Path) -> dict[str, dict[float, float]]:
    """Mean accuracy over the budget by arm and rate, of rates whose runs have all ended."""
    seen: dict[str, dict[float, list[float]]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        if rows := rows_of(file):
            run = rows[0]["run"]
            seen.setdefault(run["arm"], {}).setdefault(run["lr"], []).append(area(rows[1:]))
    return {
        arm: {rate: round(float(np.mean(values)), 4) for rate, values in of_rates.items() if len(values) == len(RATE_SEEDS)}
        for arm, of_rates in seen.items()
    }


def _run(arm: str, seed: int, calls: int, lr: float, found: Sequence[Path], folder: Path) -> ChainRun:
    return ChainRun(arm, seed, calls, lr, str(found[seed % len(found)]), str(folder), TOKENS, attempted=0)
