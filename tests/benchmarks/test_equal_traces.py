"""The second study: its runs, its rates, its figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import learning_parts.equal as equal
import pytest

POLICIES = [Path(f"policy-{number}") for number in range(6)]


def ended(folder: Path, arm: str, calls: int, rate: float, seed: int, accuracy: float) -> None:
    rows: list[dict[str, Any]] = [{"run": {"arm": arm, "calls": calls, "lr": rate, "seed": seed}}]
    rows += [{"tokens": tokens, "accuracy": accuracy} for tokens in (0, 100)]
    rows[-1]["done"] = True
    (folder / f"{calls}-{arm}-{rate:g}-{seed}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_all_arms_have_as_many_runs_wherever_they_stop() -> None:
    runs = equal.runs(POLICIES, dict.fromkeys(equal.ARMS, 1e-3), Path("runs"))
    assert len({run.name for run in runs}) == len(runs) == 2 * (24 * 8 + 6 * 5)
    assert {arm for pair in equal.DECIDING.values() for arm in pair} <= {*equal.MAIN, "luffy_grpo"}
    begun = Counter(run.arm for run in runs[: 26 * 5])
    assert set(begun.values()) == {10}
    assert all(run.policy == f"policy-{run.seed % 6}" for run in runs)


def test_the_grid_goes_on_where_the_best_rate_is_its_end(tmp_path: Path) -> None:
    first = equal.rate_runs(POLICIES, tmp_path)
    assert len(first) == 13 * 3 * 2
    for rate, accuracy in zip(equal.RATES, (0.1, 0.5, 0.2), strict=True):
        for seed in equal.RATE_SEEDS:
            ended(tmp_path, "luffy", 4, rate, seed, accuracy)
            ended(tmp_path, "steps", 4, rate, seed, rate)
    more = equal.rate_runs(POLICIES, tmp_path)[len(first) :]
    assert [(run.arm, run.calls, run.lr, run.seed) for run in more] == [("steps", 4, 2.4e-3, seed) for seed in equal.RATE_SEEDS]
    assert equal.choose(tmp_path, tmp_path / "rates.json") == {"luffy": 6e-4, "steps": 1.2e-3}
    ended(tmp_path, "luffy", 4, 2.4e-3, 2000, 1.0)  # of a rate whose other seeds have not ended nothing is known
    assert equal.choose(tmp_path, tmp_path / "rates.json")["luffy"] == 6e-4


def test_differences_are_paired_by_seed() -> None:
    def runs(*accuracies: float) -> dict[int, list[dict[str, float]]]:
        return {seed: [{"tokens": t, "accuracy": a, "train_s": t} for t in (0, 100)] for seed, a in enumerate(accuracies)}

    study = {(3, "steps"): runs(0.9, 0.8, 0.7, 0.6), (3, "luffy"): runs(0.8, 0.6, 0.4), (3, "grpo"): runs(0.1, 0.1, 0.1)}
    found = equal.figures(study)["3"]
    assert found["steps_minus_luffy"]["mean"] == pytest.approx(0.2) and found["steps_minus_luffy"]["n"] == 3
    assert found["minus"]["luffy"]["mean"] == pytest.approx(0.5) and "best_minus_sft_grpo" not in found
    assert found["steps_minus_luffy"]["by_policy"] == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3})
    assert found["steps_minus_luffy"]["verdict"] == "too few pairs" and 0 < found["steps_minus_luffy"]["logrank_p"] <= 1
    assert found["arms"]["luffy"]["reached_half"] == 2 and found["arms"]["steps"]["tokens_to_half"] == 0
    assert found["minus"]["luffy"]["p_holm"] >= found["minus"]["luffy"]["p"]
