"""The policy of a run before its first and after its last iteration, over the same held-out questions.

    python benchmarks/paired_accuracy.py rapo_results/rapo-reasoning-gym/RAPO_... --json benchmarks/results/reasoning_gym.json

Reads what a job with ``transcripts: true`` keeps of its evaluations: one greedy attempt at each question, without retrieval.
Prints accuracies, their difference with its interval (percentile bootstrap over questions), and p of the exact McNemar test,
two-sided.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from rapo_rllib.evaluation.metrics import bootstrap_interval
from rapo_rllib.monitoring.transcripts import HELD_OUT


def outcomes(file: Path) -> dict[str, bool]:
    """Which questions were answered right in one evaluation, by question.

    Raises:
        ValueError: a question was attempted twice.
    """
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    right = {row["question_id"]: bool(row["correct"]) for row in rows}
    if len(right) < len(rows):
        raise ValueError(f"{file}: {len(rows)} attempts at {len(right)} questions; pairs need one at each")
    return right


def compared(before: Mapping[str, bool], after: Mapping[str, bool]) -> dict[str, Any]:
    """``questions``, both accuracies, ``difference`` with its 95 % ``interval``, and ``p`` of the exact McNemar test.

    Under the null hypothesis each question that changed is as likely to be ``gained`` as ``lost``.

    Raises:
        ValueError: the questions are not the same.

    >>> found = compared({"a": False, "b": True, "c": False}, {"a": True, "b": True, "c": True})
    >>> found["gained"], found["lost"], found["p"]
    (2, 0, 0.5)
    """
    if before.keys() != after.keys():
        raise ValueError("the evaluations are of different questions")
    change = [after[question] - before[question] for question in before]
    gained, lost = change.count(1), change.count(-1)
    return {
        "questions": len(before),
        "accuracy_before": sum(before.values()) / len(before),
        "accuracy_after": sum(after.values()) / len(after),
        "difference": (gained - lost) / len(before),
        "interval": bootstrap_interval(change),
        "gained": gained,
        "lost": lost,
        "p": float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0,
    }


def measured(trial: Path) -> dict[str, Any]:
    """The comparison, every evaluation's accuracy, and the seconds of the run's parts."""
    files = sorted((trial / HELD_OUT).glob("version_*.jsonl"))
    if len(files) < 2:
        raise SystemExit(f"{trial / HELD_OUT}: {len(files)} evaluations; two are compared (transcripts: true writes them)")
    evaluated = {file.stem: outcomes(file) for file in files}
    first, *_, last = evaluated.values()
    results = [json.loads(line) for line in (trial / "result.json").read_text(encoding="utf-8").splitlines()]
    return {
        "comparison": compared(first, last),
        "evaluations": {name: sum(right.values()) / len(right) for name, right in evaluated.items()},
        "iterations": len(results),
        "seconds": results[-1]["rapo"]["seconds"],
        "warm_start": results[-1].get("warm_start"),
        "seconds_of_iterations": [result["time_this_iter_s"] for result in results],
        "sampled_accuracy": [result["env_runners"]["accuracy"] for result in results],
        "right": {name: {question: int(one) for question, one in right.items()} for name, right in evaluated.items()},
    }


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", type=Path, help="the folder of a run")
    parser.add_argument("--json", type=Path, help="write everything here, each question's outcome too")
    arguments = parser.parse_args()
    found = measured(arguments.trial)
    print(json.dumps({key: value for key, value in found.items() if key != "right"}, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
