"""SmolLM2 on problems of three and four operations: its runs and its figures."""

from __future__ import annotations

from pathlib import Path

import learning_parts.long_words as long_words
import pytest
from learning_parts.every_figure import all_figures
from learning_parts.results import RESULTS

POLICIES = [Path(f"policy-{number}") for number in range(3)]


def test_both_arms_have_as_many_seeds_of_each_policy() -> None:
    runs = long_words.runs(POLICIES, {"grpo": 1e-5, "word_steps": 2e-5}, Path("runs"))
    assert len({run.name for run in runs}) == len(runs) == 48
    assert [(run.arm, run.lr) for run in runs[2:4]] == [("grpo", 1e-5), ("word_steps", 2e-5)]
    assert {run.policy for run in runs[2:4]} == {"policy-1"} and {(run.steps, run.evaluated) for run in runs} == {((3, 4), 500)}


def test_differences_are_paired_by_seed() -> None:
    def runs(*accuracies: float) -> dict[int, list[dict[str, float]]]:
        return {seed: [{"tokens": 0, "accuracy": 0.0}, {"tokens": 100, "accuracy": a}] for seed, a in enumerate(accuracies)}

    found = long_words.figures({(4, "grpo"): runs(0.1, 0.2, 0.3), (4, "word_steps"): runs(0.3, 0.6, 0.9)})
    assert found["best_minus_grpo"]["mean"] == pytest.approx(0.2) and found["best_minus_grpo"]["n"] == 3
    assert found["best_minus_grpo_at_the_end"]["mean"] == pytest.approx(0.4)
    assert long_words.figures({(4, "grpo"): runs(0.1, 0.2)}) == {}


def test_what_decides_stands_where_documents_look_for_it() -> None:
    found = all_figures(RESULTS)
    for calls, of_calls in found["equal"].items():
        if "best_minus_luffy" in of_calls:
            assert found["chains"][calls]["best_minus_luffy"] == of_calls["best_minus_luffy"]
    assert found["words"].get("best_minus_grpo") == found["long_words"].get("best_minus_grpo")
