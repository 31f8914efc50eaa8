"""Raw results of runs as JSON in the repository, and the figures that are made of them.

runs/*.jsonl --collect--> results/chains-<calls>-<arm>.json --summary--> results/summary.json, docs/learning.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learning_parts.measures import area, cost_until
from learning_parts.methods import ABLATIONS, BASELINE, MAIN, NOISE
from learning_parts.plan import CALLS, EQUIVALENT, PRIMARY, TARGET
from learning_parts.statistics import holm, mean_interval, paired_difference

RESULTS = Path(__file__).resolve().parents[1] / "results"
COSTS = ("tokens", "tool_calls")
CHAINS, TIMED = "chains", "timed"  # kinds of raw results
Rows = list[dict[str, Any]]
Runs = dict[int, Rows]  # by seed
Study = dict[tuple[int | str, str], Runs]  # by calls, or "words", and arm


def rows_of(file: Path) -> Rows:
    """What a run is, and its rows, of one that has ended; nothing of another."""
    if not file.exists():
        return []
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return rows if rows and rows[-1].get("done") else []


def collect(folder: Path, results: Path = RESULTS, kind: str = CHAINS) -> int:
    """Add the ended runs in ``folder`` to the raw results; how many there were. What is there already stays as it is."""
    count = 0
    for file in sorted(folder.glob("*.jsonl")):
        if not (rows := rows_of(file)):
            continue
        run, count = rows[0]["run"], count + 1
        task = "words" if run["calls"] == "words" else f"{kind}-{run['calls']}"
        target = results / f"{task}-{run['arm']}.json"
        kept = json.loads(target.read_text()) if target.exists() else {}
        facts = {"lr": run["lr"], "policy": Path(run["policy"]).name, "tokens": run["tokens"]}
        kept.setdefault(str(run["seed"]), {**facts, "rows": [_rounded(row) for row in rows[1:]]})
        results.mkdir(parents=True, exist_ok=True)
        ordered = sorted(kept.items(), key=lambda item: int(item[0]))
        lines = ",\n".join(f"{json.dumps(seed)}: {json.dumps(run)}" for seed, run in ordered)
        target.write_text(f"{{\n{lines}\n}}\n")
    return count


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}


def read(results: Path = RESULTS, kind: str = CHAINS) -> Study:
    """All raw results on the chains, and on the word problems."""
    found: Study = {}
    for file in sorted([*results.glob(f"{kind}-*-*.json"), *results.glob("words-*.json")]):
        task, _, rest = file.stem.partition("-")
        calls, _, arm = rest.partition("-") if task == kind else ("words", "", rest)
        runs = {int(seed): run["rows"] for seed, run in json.loads(file.read_text()).items()}
        found[int(calls) if task == kind else calls, arm] = runs
    return found


def summary(study: Study, timed: Study) -> dict[str, Any]:
    """The figures by their names; arms with fewer than two seeds are left out. Seconds are taken of the runs in ``timed``."""
    study = {name: runs for name, runs in study.items() if len(runs) > 1}
    chains = {str(calls): _of_calls(study, calls) for calls in CALLS if (calls, BASELINE) in study}
    noise = {str(p): _mean(study[PRIMARY, arm]) for p, arm in NOISE.items() if (PRIMARY, arm) in study}
    ablations = {
        arm: paired_difference(areas(study[PRIMARY, arm]), areas(study[PRIMARY, base]), EQUIVALENT)
        for arm, base in ABLATIONS.items()
        if (PRIMARY, arm) in study and (PRIMARY, base) in study
    }
    adjusted = holm({arm: found["p"] for arm, found in ablations.items()})
    half = {arm: _until(timed[PRIMARY, arm], "train_s")["median"] for arm in MAIN if (PRIMARY, arm) in timed}
    return {
        "chains": chains,
        "words": _words(study) if ("words", BASELINE) in study else {},
        "noise": noise,
        "ablations": {arm: {**found, "p_holm": adjusted[arm]} for arm, found in ablations.items()},
        "seconds_to_half": half,
    }


def _words(study: Study) -> dict[str, Any]:
    """As of the chains; the differences by the names that the project's documents have for them."""
    found = _of_calls(study, "words")
    return {**found, "no_answer_minus_grpo": found["rapo_hidden_minus_grpo"]} if "rapo_hidden_minus_grpo" in found else found


def _of_calls(study: Study, calls: int | str) -> dict[str, Any]:
    there = [arm for arm in MAIN if (calls, arm) in study]
    base = areas(study[calls, BASELINE])
    minus = {arm: paired_difference(areas(study[calls, arm]), base) for arm in there if arm != BASELINE}
    adjusted = holm({arm: found["p"] for arm, found in minus.items()})
    found: dict[str, Any] = {
        f"{arm}_minus_{BASELINE}": {**difference, "p_holm": adjusted[arm]} for arm, difference in minus.items()
    }
    return {**found, "arms": {arm: figures(study[calls, arm]) for arm in there}}


def areas(runs: Runs) -> dict[int, float]:
    """The primary figure of each seed: mean held-out accuracy over the budget of generated tokens."""
    return {seed: area(rows) for seed, rows in runs.items()}


def _mean(runs: Runs) -> dict[str, float]:
    mean, low, high = mean_interval(list(areas(runs).values()))
    return {"mean": mean, "low": low, "high": high, "n": len(runs)}


def figures(runs: Runs) -> dict[str, Any]:
    """Of an arm: means over seeds."""
    ends = [rows[-1] for rows in runs.values()]
    iterations = [[row for row in rows if "reward" in row] for rows in runs.values()]
    late = [rows[-len(rows) // 3 :] for rows in iterations]  # the last third of training
    return {
        "mean_accuracy": _mean(runs),
        "accuracy_at_the_end": float(np.mean([row["accuracy"] for row in ends])),
        "pass_at_8": float(np.mean([row["pass_at_8"] for row in ends])),
        **{cost: float(np.mean([row[cost] for row in ends])) for cost in COSTS},
        "until_half": {cost: _until(runs, cost) for cost in COSTS},
        "diversity": _over(iterations, "diversity"),
        "groups_with_signal": 1 - _over(iterations, "groups_without_signal"),
        "late": {
            name: _over(late, name)
            for name in ("accuracy_retrieved", "accuracy_others", "accuracy_right_step_retrieved", "accuracy_right_step_others")
        },
        **{
            name: _over(iterations, name) for name in ("own_question", "shows_answer", "answers_copied", "z_ret", "z_on_policy")
        },
    }


def _over(runs: Sequence[Rows], name: str) -> float:
    """Mean over seeds of the mean over iterations."""
    return float(np.mean([np.mean([row[name] for row in rows]) for rows in runs]))


def _until(runs: Runs, cost: str) -> dict[str, Any]:
    """Seeds that reached the target, and the median cost over all seeds; None where half of them never did."""
    costs = [cost_until(rows, TARGET, cost) for rows in runs.values()]
    median = float(np.median([float("inf") if value is None else value for value in costs]))
    return {"reached": sum(value is not None for value in costs), "median": None if np.isinf(median) else median}
