"""Metrics against numbers that were worked out by hand, or counted over all cases."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from rapo_rllib.agents.agent import Attempt
from rapo_rllib.evaluation.metrics import accuracies, bootstrap_interval, paired_difference, pass_at_k, summary


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 5 / 6), (4, 3, 2, 1.0), (4, 0, 4, 0.0), (1, 1, 1, 1.0), (5, 5, 1, 1.0)],
)
def test_pass_at_k_by_hand(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected)


@pytest.mark.parametrize("n", [1, 3, 6])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n: int) -> None:
    for c in range(n + 1):
        for k in range(1, n + 1):
            subsets = [any(i < c for i in subset) for subset in combinations(range(n), k)]
            assert pass_at_k(n, c, k) == pytest.approx(sum(subsets) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_that_is_not_defined(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {c} right among {n} attempts"):
        pass_at_k(n, c, k)


def test_bootstrap_interval() -> None:
    assert bootstrap_interval([0.5] * 10) == (0.5, 0.5)
    # of one right and one wrong, a resample has mean 0, 1/2 or 1 with chances 1/4, 1/2, 1/4
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], level=0.4) == (0.5, 0.5)
    values = [1.0] * 300 + [0.0] * 700
    low, high = bootstrap_interval(values)
    spread = 1.96 * np.sqrt(0.3 * 0.7 / 1000)  # of the normal approximation
    assert low == pytest.approx(0.3 - spread, abs=0.003) and high == pytest.approx(0.3 + spread, abs=0.003)
    assert bootstrap_interval(values) == (low, high)
    uneven = [0.1, 0.25, 0.7, 0.8, 0.95]
    assert bootstrap_interval(uneven, resamples=20) != bootstrap_interval(uneven, resamples=20, seed=1)
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_interval([])


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    samples = rng.binomial(1, 0.4, size=(300, 80)).astype(float)
    covered = [low <= 0.4 <= high for low, high in (bootstrap_interval(values, resamples=400) for values in samples)]
    assert 0.91 < np.mean(covered) < 0.98


def attempt(correct: bool, end: str = "answer", **fields: Any) -> Attempt:
    return Attempt((), float(correct), end, correct=correct, **fields)


def test_summary_by_hand() -> None:
    right = attempt(True, format_ok=True, tool_calls=2, tokens=30, seconds=1.5, f1=1.0, exact_match=1.0, predicted="8")
    half = attempt(False, "eos", format_ok=True, tool_calls=1, tokens=20, seconds=0.5, f1=0.5, exact_match=0.0)
    failed = attempt(False, "error", error="env.step failed after 3 s", tokens=10, f1=0.0, exact_match=0.0)
    found = summary([[right, half, half], [right, right, right], [failed, half, failed]])
    assert found["questions"] == 3 and found["samples"] == 3
    assert found["accuracy"] == pytest.approx((1 / 3 + 1 + 0) / 3)
    assert found["accuracy_ci"][0] == pytest.approx(0.0, abs=0.12) and found["accuracy_ci"][1] == pytest.approx(1.0)
    assert found["pass_at_k"] == pytest.approx({"1": (1 / 3 + 1) / 3, "2": (2 / 3 + 1) / 3, "3": 2 / 3})
    assert found["f1"] == pytest.approx((2 / 3 + 1 + 0.5 / 3) / 3) and found["exact_match"] == pytest.approx(4 / 9)
    assert found["format_rate"] == pytest.approx(7 / 9) and found["tool_calls"] == pytest.approx(11 / 9)
    assert found["tokens"] == pytest.approx(200 / 9) and found["seconds"] == pytest.approx(7.5 / 9)
    assert (found["failed"], found["errors"]) == (2, {"env.step failed after N s": 2})
    assert found["reward"] == pytest.approx(4 / 9) and found["unanswered"] == {"eos": 3}
    assert found["ends"] == {"answer": 4, "eos": 3, "error": 2}


def test_maths_has_no_f1() -> None:
    found = summary([[attempt(True)], [attempt(False)]])
    assert "f1" not in found and "exact_match" not in found
    assert found["accuracy"] == 0.5 and found["pass_at_k"] == {"1": 0.5}


def test_paired_difference() -> None:
    before, after = [[attempt(False)], [attempt(True)], [attempt(False)]], [[attempt(True)], [attempt(True)], [attempt(False)]]
    found = paired_difference(accuracies(before), accuracies(after))
    assert found["difference"] == pytest.approx(1 / 3) and found["difference_ci"] == pytest.approx([0.0, 1.0])
    with pytest.raises(ValueError):
        paired_difference([0.0], [0.0, 1.0])
