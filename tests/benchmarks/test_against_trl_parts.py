"""The ratios, the turns and the judge of ``benchmarks/against_trl.py``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import against_trl
import pytest
from against_trl_parts.compare import compare, ratio_over_seeds, seconds_until, time_ratio
from against_trl_parts.job import Job, Rows

RISING = [(0.0, 0.1), (10.0, 0.3), (20.0, 0.2), (40.0, 0.6)]


def job(**changes: Any) -> Job:
    numbers = {**against_trl.SHORT, "iterations": 5, "every": 2, **changes}
    return Job(seed=numbers.pop("seed", 0), model=numbers.pop("model", "/a/model"), dtype="float32", lr=1e-5, **numbers)


@pytest.mark.parametrize(("accuracy", "seconds"), [(0.2, 5.0), (0.3, 10.0), (0.4, 30.0), (0.6, 40.0), (0.61, None)])
def test_seconds_until_an_accuracy_are_those_of_the_first_crossing(accuracy: float, seconds: float | None) -> None:
    assert seconds_until(RISING, accuracy) == (None if seconds is None else pytest.approx(seconds))


def test_an_accuracy_that_the_model_has_before_training_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--accuracy 0\.1: the model has 0\.1 before training"):
        seconds_until(RISING, 0.1)


def test_ratios_are_theirs_over_ours_by_their_geometric_mean() -> None:
    found = ratio_over_seeds({0: 8.0, 1: 6.0, 2: 9.0}, {0: 4.0, 1: 0.75, 3: 1.0})
    assert found["mean"] == pytest.approx(4.0) and found["by_seed"] == {0: 2.0, 1: 8.0}  # sqrt(2 · 8)
    half = 12.7062 * math.log(2)  # t of one degree of freedom; the logs are ln 4 ± ln 2, so s / √2 = ln 2
    assert math.log(found["high"]) == pytest.approx(math.log(4) + half, rel=1e-4)
    assert math.log(found["low"]) == pytest.approx(math.log(4) - half, rel=1e-4)
    assert ratio_over_seeds({0: 3.0}, {0: 1.0}) == {"mean": pytest.approx(3.0), "low": None, "high": None, "by_seed": {0: 3.0}}


def test_a_side_that_does_not_get_there_counts_with_all_its_seconds_and_is_named() -> None:
    never, late = [(0.0, 0.1), (90.0, 0.2)], [(0.0, 0.0), (60.0, 0.6)]
    found = time_ratio({0: never, 1: late, 2: never}, {0: RISING, 1: never, 2: never}, 0.4)
    assert found["by_seed"] == {0: pytest.approx(90 / 30), 1: pytest.approx(40 / 90)}
    assert found["censored"] == {"theirs": [0, 2], "ours": [1, 2]} and found["accuracy"] == 0.4
    nobody = time_ratio({0: never}, {0: never}, 0.4)
    assert nobody["mean"] is None and nobody["censored"] == {"theirs": [0], "ours": [0]}


def raw(seconds: float, memory: float) -> dict[str, Any]:
    row = {"tokens": 100, "trained": 50}
    rows = [{"seconds": s, "rollout_s": s / 2, "update_s": s / 4, **row} for s in (99.0, seconds, seconds)]
    return {"iterations": rows, "held_out": [[0.0, 0.1], [10 * seconds, 0.6]], "peak_memory_gb": memory, "training_s": 1.0}


def test_the_report_leaves_out_the_first_iteration_and_says_what_was_skipped() -> None:
    skipped = {"skipped": "ValueError: no CPU"}
    report = compare({"ours": {0: raw(2.0, 3.0)}, "trl": {0: raw(8.0, 4.5)}, "trl_vllm": {0: skipped}}, 0.35)
    assert report["skipped"] == {"trl_vllm": {0: "ValueError: no CPU"}} and "trl_vllm_seconds_ratio" not in report
    ratios = {name: report[name]["mean"] for name in ("seconds_ratio", "memory_ratio", "time_to_accuracy_ratio")}
    assert ratios == pytest.approx({"seconds_ratio": 4.0, "memory_ratio": 1.5, "time_to_accuracy_ratio": 4.0})
    ours = report["figures"]["ours"][0]
    assert (ours["seconds_an_iteration"], ours["rollout_tokens_per_s"], ours["update_tokens_per_s"]) == (2.0, 100.0, 100.0)
    assert ours["trained_share"] == 0.5 and ours["tokens_an_iteration"] == 100.0
    assert "trl_vllm_seconds_ratio" in compare({"ours": {0: raw(2.0, 3.0)}, "trl_vllm": {0: raw(8.0, 4.5)}}, 0.35)


def test_sides_take_turns_and_settings_are_all_but_seed_and_folder() -> None:
    turns = list(against_trl.turns(("ours", "trl"), [4, 5]))
    assert turns == [("ours", 4), ("trl", 4), ("trl", 5), ("ours", 5)]
    assert job().settings == job(seed=3, model="/another/model").settings != job(max_tokens=9).settings


def test_policies_are_written_outside_the_seconds_of_training(tmp_path: Path) -> None:
    written: list[str] = []
    rows = Rows(job(), lambda folder: written.append(folder.name), tmp_path)
    for _ in range(5):
        rows.add(seconds=2.0, rollout_s=1.0, update_s=0.5, tokens=9, trained=9, reward=0.0)
    assert written == ["policy-2", "policy-4", "policy-5"] and rows.policies == {2: 4.0, 4: 8.0, 5: 10.0}
