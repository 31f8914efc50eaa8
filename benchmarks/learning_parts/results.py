"""Raw results of the studies' runs, and the figures that are made of them.

results/<kind>-<calls>-<arm>.json --summary--> results/summary.json, docs/learning.md
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learning_parts.arms import (
    ABLATIONS,
    BASELINE,
    BRANCHING,
    CALLS,
    CONTROLS,
    CREDIT,
    EQUIVALENT,
    MAIN,
    NOISE,
    POLICIES,
    PRIMARY,
    SAME_RATE,
    STALE,
    TARGET,
    WORD_CREDIT,
)
from learning_parts.measures import area, cost_until, first_success, waited
from learning_parts.statistics import holm, mean_interval, paired_difference

RESULTS = Path(__file__).resolve().parents[1] / "results"
COSTS = ("tokens", "tool_calls", "train_s")  # seconds are those of two runs at a time
CHAINS, TIMED, PILOT = "chains", "timed", "pilot"  # kinds of raw results
Rows = list[dict[str, Any]]
Runs = dict[int, Rows]  # by seed
Study = dict[tuple[int | str, str], Runs]  # by calls, or "words", and arm


def read(results: Path = RESULTS, kind: str = CHAINS) -> Study:
    """All raw results of a kind; of the study, those on the word problems, too."""
    found: Study = {}
    words = results.glob("words-*.json") if kind == CHAINS else ()
    for file in sorted([*results.glob(f"{kind}-*-*.json"), *words]):
        task, _, rest = file.stem.partition("-")
        calls, _, arm = rest.partition("-") if task == kind else ("words", "", rest)
        runs = {int(seed): run["rows"] for seed, run in json.loads(file.read_text()).items()}
        found[int(calls) if task == kind else calls, arm] = runs
    return found


def summary(study: Study, timed: Study) -> dict[str, Any]:
    """The figures by their names; arms with fewer than two seeds are left out. ``seconds_alone`` is of ``timed``."""
    study = {name: runs for name, runs in study.items() if len(runs) > 1}
    chains = {str(calls): _of_calls(study, calls) for calls in CALLS if (calls, BASELINE) in study}
    noise = {str(p): _mean(study[PRIMARY, arm]) for p, arm in NOISE.items() if (PRIMARY, arm) in study}
    ablations = {
        arm: paired_difference(areas(study[PRIMARY, arm]), areas(study[PRIMARY, base]), EQUIVALENT)
        for arm, base in ABLATIONS.items()
        if (PRIMARY, arm) in study and (PRIMARY, base) in study
    }
    adjusted = holm({arm: found["p"] for arm, found in ablations.items()})
    half, alone = (
        {arm: _until(runs[PRIMARY, arm], "train_s")["median"] for arm in MAIN if (PRIMARY, arm) in runs}
        for runs in (study, timed)
    )
    return {
        "chains": chains,
        "words": _words(study) if ("words", BASELINE) in study else {},
        "noise": noise,
        "ablations": {arm: {**found, "p_holm": adjusted[arm]} for arm, found in ablations.items()},
        "credit": _credit(study, PRIMARY, CREDIT) if {(PRIMARY, "rapo"), (PRIMARY, BASELINE)} <= study.keys() else {},
        "branching": {
            arm: _calls_ratio(study, arm) for arm in BRANCHING if {(PRIMARY, arm), (PRIMARY, BASELINE)} <= study.keys()
        },
        "staleness": _staleness(study) if all((PRIMARY, arm) in study for arm in STALE) else {},
        "same_rate": _same_rate(study) if (2, SAME_RATE) in study else {},
        "seconds_to_half": half,
        "seconds_alone": alone,
        "seconds_ratio": _seconds_ratio(study) if {(PRIMARY, "rapo"), (PRIMARY, BASELINE)} <= study.keys() else {},
    }


def _same_rate(study: Study) -> dict[str, Any]:
    """At two calculations, GRPO with RAPO's learning rate: its figure, and what retrieval is ahead of it."""
    base = areas(study[2, SAME_RATE])
    there = [arm for arm in ("rapo", "rapo_hidden") if (2, arm) in study]
    minus = {f"{arm}_minus": paired_difference(areas(study[2, arm]), base) for arm in there}
    return {"mean_accuracy": _mean(study[2, SAME_RATE]), **minus}


def _staleness(study: Study) -> dict[str, Any]:
    """Accuracy of rollouts beside updates, of rollouts that updates wait for, and their difference, paired by seed."""
    ours, base = (areas(study[PRIMARY, arm]) for arm in STALE)
    return {**{arm: _mean(study[PRIMARY, arm]) for arm in STALE}, "difference": paired_difference(ours, base, EQUIVALENT)}


def _calls_ratio(study: Study, arm: str) -> dict[str, float]:
    """Tool calls until TARGET, an arm's over GRPO's, of the shared seeds where both get there, and how many do."""
    shared = sorted(study[PRIMARY, arm].keys() & study[PRIMARY, BASELINE].keys())
    ours, base = (
        {seed: cost_until(study[PRIMARY, name][seed], TARGET, "tool_calls") for seed in shared} for name in (arm, BASELINE)
    )
    ratios = [mine / theirs for mine, theirs in zip(ours.values(), base.values(), strict=True) if mine and theirs]
    counts = {"reached": sum(one is not None for one in ours.values()), "n": len(ratios), "seeds": len(shared)}
    counts["grpo_reached"] = sum(one is not None for one in base.values())
    if len(ratios) < 2:
        return counts
    mean, low, high = mean_interval(ratios)
    return {"mean": mean, "low": low, "high": high, **counts}


def _seconds_ratio(study: Study) -> dict[str, float]:
    """Seconds a generated token, RAPO over GRPO, paired by seed, at the primary number of calculations."""
    ends = {arm: {seed: rows[-1] for seed, rows in study[PRIMARY, arm].items()} for arm in ("rapo", BASELINE)}
    pace = {arm: {seed: row["train_s"] / row["tokens"] for seed, row in of_arm.items()} for arm, of_arm in ends.items()}
    seeds = pace["rapo"].keys() & pace[BASELINE].keys()
    mean, low, high = mean_interval([pace["rapo"][seed] / pace[BASELINE][seed] for seed in seeds])
    return {"mean": mean, "low": low, "high": high, "n": len(seeds)}


def _credit(study: Study, calls: int | str, arms: Iterable[str]) -> dict[str, Any]:
    """Compare each of ``arms``; Holm over the arms, a family for each ``minus``."""
    there = [arm for arm in arms if (calls, arm) in study]
    found: dict[str, Any] = {arm: {"mean_accuracy": _mean(study[calls, arm])} for arm in there}
    families = {"rapo": dict.fromkeys(there, "rapo"), BASELINE: dict.fromkeys(there, BASELINE), "control": CONTROLS}
    for family, bases in families.items():
        pairs = [(arm, bases[arm]) for arm in there if (calls, bases.get(arm, "")) in study]
        minus = {arm: paired_difference(areas(study[calls, arm]), areas(study[calls, base])) for arm, base in pairs}
        adjusted = holm({arm: one["p"] for arm, one in minus.items()})
        for arm, one in minus.items():
            found[arm][f"minus_{family}"] = {**one, "p_holm": adjusted[arm]}
    return found


def _words(study: Study) -> dict[str, Any]:
    """Compare arms on word problems; differences have the names that the project's documents have for them."""
    found = {**_of_calls(study, "words"), "credit": _credit(study, "words", WORD_CREDIT)}
    return {**found, "no_answer_minus_grpo": found["rapo_hidden_minus_grpo"]} if "rapo_hidden_minus_grpo" in found else found


def _of_calls(study: Study, calls: int | str) -> dict[str, Any]:
    there = [arm for arm in MAIN if (calls, arm) in study]
    base = areas(study[calls, BASELINE])
    minus = {arm: paired_difference(areas(study[calls, arm]), base) for arm in there if arm != BASELINE}
    adjusted = holm({arm: found["p"] for arm, found in minus.items()})
    found: dict[str, Any] = {
        f"{arm}_minus_{BASELINE}": {**difference, "p_holm": adjusted[arm]} for arm, difference in minus.items()
    }
    if "rapo" in there:
        found["by_policy"] = _by_policy(areas(study[calls, "rapo"]), base)
    return {**found, "arms": {arm: figures(study[calls, arm]) for arm in there}}


def _by_policy(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Mean difference over the seeds of each base policy."""
    seeds = sorted(ours.keys() & theirs.keys())
    of_policy = [[ours[seed] - theirs[seed] for seed in seeds if seed % POLICIES == policy] for policy in range(POLICIES)]
    return [float(np.mean(differences)) for differences in of_policy if differences]


def areas(runs: Runs) -> dict[int, float]:
    """The primary figure of each seed: mean held-out accuracy over the budget of generated tokens."""
    return {seed: area(rows) for seed, rows in runs.items()}


def _mean(runs: Runs) -> dict[str, float]:
    mean, low, high = mean_interval(list(areas(runs).values()))
    return {"mean": mean, "low": low, "high": high, "n": len(runs)}


def figures(runs: Runs) -> dict[str, Any]:
    """Average an arm over its seeds."""
    ends = [rows[-1] for rows in runs.values()]
    iterations = [[row for row in rows if "reward" in row] for rows in runs.values()]
    late = [rows[-len(rows) // 3 :] for rows in iterations]  # the last third of training
    return {
        "mean_accuracy": _mean(runs),
        "accuracy_at_the_end": float(np.mean([row["accuracy"] for row in ends])),
        "pass_at_8": float(np.mean([row["pass_at_8"] for row in ends])),
        **{cost: float(np.mean([row[cost] for row in ends])) for cost in COSTS},
        "until_half": {cost: _until(runs, cost) for cost in COSTS},
        "first_success": {**_median([first_success(rows) for rows in runs.values()]), "rate": waited(list(runs.values()))},
        "diversity": _over(iterations, "diversity"),
        "groups_with_signal": 1 - _over(iterations, "groups_without_signal"),
        "late": {
            name: _over(late, name)
            for name in ("accuracy_retrieved", "accuracy_others", "accuracy_right_step_retrieved", "accuracy_right_step_others")
        },
        **{name: _over(iterations, name) for name in ("own_question", "shows_answer", "z_ret", "z_on_policy")},
        "answers_copied": _pooled(iterations, "answers_copied", "answers_count"),
    }


def _over(runs: Sequence[Rows], name: str) -> float:
    """Mean over seeds of the mean over iterations."""
    return float(np.mean([np.mean([row[name] for row in rows]) for rows in runs]))


def _pooled(runs: Sequence[Rows], name: str, count: str) -> float | None:
    """Share over everything that was counted in any iteration of any seed; None: nothing was."""
    counts = [(row[name], row[count]) for rows in runs for row in rows]
    total = sum(number for _, number in counts)
    return float(sum(share * number for share, number in counts) / total) if total else None


def _until(runs: Runs, cost: str) -> dict[str, Any]:
    """Seeds that reached the target, and the median cost over all seeds; None where half of them never did."""
    return _median([cost_until(rows, TARGET, cost) for rows in runs.values()])


def _median(values: Sequence[float | None]) -> dict[str, Any]:
    median = float(np.median([float("inf") if value is None else value for value in values]))
    return {"reached": sum(value is not None for value in values), "median": None if np.isinf(median) else median}
