"""The figures of the second study."""

from __future__ import annotations

import learning_parts.equal as equal
import pytest


def test_arms_are_held_against_the_base_of_their_situation() -> None:
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
