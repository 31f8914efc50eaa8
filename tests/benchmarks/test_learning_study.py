"""The studies' raw results become figures and tables."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from learning_parts.arms import SAME_RATE, STALE
from learning_parts.every_figure import all_figures
from learning_parts.measures import area, cost_until, first_success, waited
from learning_parts.plots import curves, on_a_grid
from learning_parts.results import RESULTS, TIMED, read, summary
from learning_parts.statistics import holm, mean_interval, paired_difference
from learning_parts.tables import PAGES, figures, tables, written_into

EFFECT = (
    *("own_question", "shows_answer", "z_ret", "z_on_policy", "answers_copied", "answers_count"),
    *("accuracy_retrieved", "accuracy_others", "accuracy_right_step_retrieved", "accuracy_right_step_others"),
)

ROWS = [
    {"tokens": 0, "accuracy": 0.0, "train_s": 0},
    {"tokens": 50, "train_s": 1},
    {"tokens": 100, "accuracy": 0.5, "train_s": 2},
    {"tokens": 200, "accuracy": 0.5, "train_s": 4},
]


def test_area_and_cost() -> None:
    assert area(ROWS) == pytest.approx((25 + 50) / 200)
    assert cost_until(ROWS, 0.5, "train_s") == 2
    assert cost_until(ROWS, 0.6, "train_s") is None


def test_the_first_success_is_counted_in_iterations() -> None:
    rows = [{"accuracy": 0.1}, {"reward": 0.0}, {"reward": 0.0}, {"reward": 0.01}, {"accuracy": 0.2}]
    assert first_success(rows) == 3 and first_success(rows[:3]) is None
    late = [{"reward": 0.0}, {"reward": 0.0}]
    assert waited([rows, late, [{"reward": 0.05}, {"reward": 0.9}]]) == pytest.approx((0.01 + 0.05) / 6)


def test_intervals() -> None:
    """Of 1, 2, 3, 4: mean 2.5, s = 1.290994, t of three degrees of freedom 3.182446: half width 2.054260."""
    assert mean_interval([1, 2, 3, 4]) == pytest.approx((2.5, 0.445740, 4.554260), abs=1e-6)
    assert mean_interval([0.4] * 5) == pytest.approx((0.4, 0.4, 0.4))
    assert mean_interval([0.4]) == (0.4, -math.inf, math.inf)
    with pytest.raises(ValueError, match="values"):
        mean_interval([])


def test_differences_are_paired_by_seed() -> None:
    found = paired_difference({0: 0.5, 1: 0.9, 2: 0.1, 3: 0.4}, {0: 0.25, 1: 0.65, 3: 0.1, 7: 1.0}, equivalent=0.3)
    assert (found["n"], found["higher"]) == (3, 3)
    assert found["mean"] == pytest.approx(0.8 / 3)
    assert found["p"] == pytest.approx(
        1 - 16 / math.sqrt(258)
    )  # t = 0.266667 / (0.028868 / √3) = 16; of two degrees: 1 - t/√(t² + 2)
    assert not found["is_equivalent"]  # the 90 % interval ends at 0.315
    assert paired_difference({0: 0.50, 1: 0.51, 2: 0.49}, dict.fromkeys(range(3), 0.5), 0.03)["is_equivalent"]
    assert paired_difference({0: 0.2, 1: 0.2}, {0: 0.1, 1: 0.1})["p"] == 1.0


def test_holm() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def write_runs(results: Path, ends: dict[str, tuple[float, ...]], task: str = "chains-3") -> None:
    """Raw results of runs that end with these accuracies, a seed each."""
    for arm, accuracies in ends.items():
        runs = {str(seed): {"lr": 1e-4, "rows": rows_to(end)} for seed, end in enumerate(accuracies)}
        (results / f"{task}-{arm}.json").write_text(json.dumps(runs))


def rows_to(accuracy: float) -> list[dict[str, Any]]:
    totals = {"rollout_s": 3.0, "train_s": 9.0, "tool_calls": 5, "iteration": 2}
    shown = {"reward": 0.12346, "diversity": 0.5, "groups_without_signal": 0.25, **dict.fromkeys(EFFECT, accuracy)}
    return [
        {**totals, "tokens": 0, "accuracy": 0.0},
        {**totals, "tokens": 100, **shown},
        {**totals, "tokens": 200, "accuracy": accuracy, "pass_at_8": 0.75},
    ]


def test_raw_results_become_figures_and_tables(tmp_path: Path) -> None:
    ends = {"rapo": (0.8, 0.6, 0.7), "grpo": (0.4, 0.4, 0.3), "noise_0.5": (0.2, 0.3, 0.2), "oracle": (0.2, 0.3, 0.2)}
    write_runs(tmp_path, {**ends, "luffy": (1.0,)})
    study = read(tmp_path)
    assert set(study[3, "rapo"]) == {0, 1, 2} and study[3, "rapo"][0][-1]["accuracy"] == 0.8
    write_runs(tmp_path, {"rapo": (0.8,), "grpo": (0.4,)}, "timed-3")
    assert read(tmp_path) == study
    found = summary(study, read(tmp_path, TIMED))
    minus = found["chains"]["3"]["rapo_minus_grpo"]
    assert minus["mean"] == pytest.approx(1 / 6) and minus["n"] == 3 and minus["low"] < 1 / 6 < minus["high"]
    assert minus["p_holm"] == minus["p"]  # a family of one: of LUFFY there is one seed only
    assert "luffy" not in found["chains"]["3"]["arms"]
    rapo = found["chains"]["3"]["arms"]["rapo"]
    assert rapo["mean_accuracy"]["mean"] == pytest.approx(0.35) and rapo["accuracy_at_the_end"] == pytest.approx(0.7)
    assert (rapo["pass_at_8"], rapo["groups_with_signal"], rapo["diversity"]) == (0.75, 0.75, 0.5)
    assert rapo["until_half"]["tokens"] == {"reached": 3, "median": 200}
    assert found["noise"]["0.0"]["mean"] == pytest.approx(0.35) and set(found["noise"]) == {"0.0"}
    assert found["ablations"]["oracle"]["is_equivalent"] and not found["ablations"]["noise_0.5"]["is_equivalent"]
    assert found["seconds_alone"] == {"rapo": 9.0, "grpo": None} and found["seconds_to_half"] == {"rapo": 9.0, "grpo": None}
    assert found["seconds_ratio"] == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0, "n": 3})
    assert found["chains"]["3"]["by_policy"] == pytest.approx([0.2, 0.1, 0.2])
    assert figures(found)["policies-3"] == "+20, +10, +20 points; over policies +17 (2 to 31)"
    assert rapo["answers_copied"] == pytest.approx((0.8**2 + 0.6**2 + 0.7**2) / 2.1)  # weighted by how many there were
    json.loads(json.dumps(found, allow_nan=False))
    made = tables(found)
    assert "| 3 | RAPO | 3 of 3 | 1 | 123.5 |" in made["first"]
    assert set(made) == {"chains-3", "first", "noise", "ablations", "seconds"}
    assert "| RAPO | 35 (" in made["chains-3"] and "never" in made["chains-3"]
    page = "a\n<!-- table noise -->\nold\n<!-- end -->\nb <!-- table chains-4 --> kept <!-- end -->"
    written = written_into(page, made, {})
    assert "old" not in written and made["noise"] in written and "kept" in written
    assert written_into(written, made, {}) == written
    curves(study, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def studied(folder: Path, ends: dict[str, tuple[float, ...]], task: str = "chains-3") -> dict[str, Any]:
    """The figures of runs that end with these accuracies."""
    write_runs(folder, ends, task)
    return summary(read(folder), {})


def test_grpo_with_rapos_rate_is_held_against_retrieval_at_two_calculations(tmp_path: Path) -> None:
    ends = {"grpo": (0.4, 0.4), "rapo": (0.8, 0.8), "rapo_hidden": (0.7, 0.7), SAME_RATE: (0.6, 0.6)}
    found = studied(tmp_path, ends, task="chains-2")
    assert SAME_RATE not in found["chains"]["2"]["arms"]
    assert found["same_rate"]["mean_accuracy"]["mean"] == pytest.approx(0.3)
    assert found["same_rate"]["rapo_minus"]["mean"] == pytest.approx(0.1)
    assert found["same_rate"]["rapo_hidden_minus"]["mean"] == pytest.approx(0.05)
    assert "| RAPO, minus this GRPO |  | +10.0" in tables(found)["same_rate"]


def test_rollouts_beside_updates_are_held_against_those_that_updates_wait_for(tmp_path: Path) -> None:
    """The mean over the budget is half of what is reached at its end."""
    found = studied(tmp_path, dict(zip(STALE, ((0.6, 0.8, 0.7), (0.8, 0.8, 0.8)), strict=True)))
    assert found["staleness"]["stale_2"]["mean"] == pytest.approx(0.35)
    assert found["staleness"]["difference"]["mean"] == pytest.approx(-0.05)
    told = figures(found)["staleness"]
    assert told.startswith("35 (") and " against 40 (40 to 40) %, -5.0 (" in told and told.endswith("points, 3 seeds")


def test_branches_are_held_against_grpo_by_the_tool_calls_until_half(tmp_path: Path) -> None:
    """GRPO gets there on two of three seeds, with as many calls as ARPO; where it does not, there is no pair."""
    ends = {"grpo": (0.8, 0.4, 0.8), "arpo": (0.8, 0.8, 0.8), "rapo": (0.8, 0.8, 0.8)}
    found = studied(tmp_path, ends)["branching"]["arpo"]
    assert (found["reached"], found["grpo_reached"], found["seeds"], found["n"]) == (3, 2, 3, 2)
    assert found["mean"] == pytest.approx(1.0)


def test_arms_of_credit_are_held_against_rapo_grpo_and_their_control(tmp_path: Path) -> None:
    """grpo_step_credit less RAPO: -.15 and -.05; less its control: .1 and .2, halved by the area under the curve."""
    ends = {"rapo": (0.8, 0.6), "grpo": (0.4, 0.2)}
    credited = {"grpo_steps": (0.4, 0.3), "grpo_step_credit": (0.5, 0.5), "arpo": (0.2, 0.1)}
    found = studied(tmp_path, ends | credited)
    credit = found["credit"]
    assert list(credit) == ["grpo_steps", "grpo_step_credit", "arpo"]
    one = credit["grpo_step_credit"]
    assert one["minus_rapo"]["mean"] == pytest.approx(-0.1) and one["minus_grpo"]["mean"] == pytest.approx(0.1)
    assert one["minus_control"]["mean"] == pytest.approx(0.075) and "minus_control" not in credit["arpo"]
    assert one["minus_control"]["p_holm"] == one["minus_control"]["p"]  # a family of one
    for family in ("minus_rapo", "minus_grpo"):
        adjusted = holm({arm: of_arm[family]["p"] for arm, of_arm in credit.items()})
        assert {arm: of_arm[family]["p_holm"] for arm, of_arm in credit.items()} == adjusted
        assert {"mean", "low", "high", "n"} <= one[family].keys()
    assert "`grpo_step_credit` | 25 (25 to 25) | -10.0 (" in tables(found)["credit"]
    page = written_into("| x | <!-- figure credit-arpo -->?<!-- end --> |", {}, figures(found))
    assert page == "| x | <!-- figure credit-arpo -->-28 to RAPO, -8 to GRPO<!-- end --> |"


def test_the_grid_is_as_long_as_the_shortest_run() -> None:
    grid, values = on_a_grid([ROWS, ROWS[:3]], points=3)
    assert list(grid) == [0, 50, 100]
    assert values.tolist() == [[0, 0.25, 0.5], [0, 0.25, 0.5]]


def test_the_page_and_the_summary_are_made_of_the_raw_results() -> None:
    found = all_figures(RESULTS)
    for file in PAGES:
        page = file.read_text(encoding="utf-8")
        assert written_into(page, tables(found), figures(found)) == page
    if found["chains"]:
        assert json.loads((RESULTS / "summary.json").read_text()) == json.loads(json.dumps(found))


def test_runs_on_the_word_problems_are_figures_of_their_own(tmp_path: Path) -> None:
    ends = {"grpo": (0.2, 0.2), "rapo": (0.3, 0.3), "rapo_hidden": (0.25, 0.25), "own": (0.5, 0.5)}
    found = studied(tmp_path, ends, task="words")
    assert found["words"]["rapo_minus_grpo"]["mean"] == pytest.approx(0.05)
    assert found["words"]["no_answer_minus_grpo"]["mean"] == pytest.approx(0.025)
    assert "| RAPO, no step shown" in tables(found)["words"] and not found["chains"]
    own = found["words"]["credit"]["own"]
    assert (own["minus_rapo"]["mean"], own["minus_grpo"]["mean"]) == pytest.approx((0.1, 0.15))
    assert "| `own` | 25 (25 to 25) | +10.0" in tables(found)["words-credit"]
