"""SmolLM2 on problems of three and four operations: its runs and its figures."""

from __future__ import annotations

import json
from pathlib import Path

import learning_parts.long_words as long_words
import pytest
from learning_parts.equal_tables import equal_tables
from learning_parts.every_figure import all_figures

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


def test_what_decides_stands_where_documents_look_for_it(tmp_path: Path) -> None:
    def write(name: str, *ends: float) -> None:
        raw = {seed: {"rows": [{"tokens": t, "accuracy": a, "train_s": t} for t in (0, 100)]} for seed, a in enumerate(ends)}
        (tmp_path / f"{name}.json").write_text(json.dumps(raw))

    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "habits.json").write_text("{}")
    write("equal-3-sft_steps", 0.9, 0.8, 0.7)
    write("equal-3-luffy", 0.8, 0.6)
    write("equal-4-sft_steps_other", 0.9, 0.8)
    write("equal-4-sft_grpo_other", 0.8, 0.9)
    write("long_words-4-word_steps", 0.5, 0.6)
    write("long_words-4-grpo", 0.1, 0.3)
    found = all_figures(tmp_path)
    assert found["chains"]["3"]["best_minus_luffy"]["mean"] == pytest.approx(0.15)
    assert found["other"].keys() == {"4"} and found["other"]["4"]["best_minus_sft_grpo"]["mean"] == pytest.approx(0.0)
    assert found["words"]["best_minus_grpo"]["mean"] == pytest.approx(0.35) and found["words"]["best_minus_grpo"]["n"] == 2
    made = equal_tables(found["equal"], found["long_words"])
    assert "| fine-tuning, then that | 80 (55 to 105) |  | 80 | 3 of 3, 0 | 100 |" in made["equal-3"]
    assert "| fine-tuning and single steps, minus LUFFY | 3 | +15.0 (-48.5 to 78.5; 2 of 2) |" in made["equal-deciding"]
    assert made["equal-deciding"].count("too few pairs") == 2 and "+35.0 (" in made["long_words"]
