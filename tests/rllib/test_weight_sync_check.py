"""The canary's verdict, on numbers."""

from __future__ import annotations

import pytest

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.weight_sync import verify_engine

SCORES = [[-1.0, -2.0], [-0.5, -3.0]]


def test_equal_scores_and_version_pass() -> None:
    assert verify_engine(version=3, engine_version=3, expected=SCORES, scored=SCORES, tolerance=0.0) == (0.0, 0.0)


def test_mean_and_largest_difference() -> None:
    # |0.1|, |0|, |0.3|, |0| -> mean 0.1, max 0.3
    scored = [[-1.1, -2.0], [-0.2, -3.0]]
    mean, largest = verify_engine(version=1, engine_version=1, expected=SCORES, scored=scored, tolerance=0.11)
    assert (mean, largest) == pytest.approx((0.1, 0.3))


def test_an_old_version_is_caught() -> None:
    with pytest.raises(WeightSyncError, match="holds weight version 2 after version 3 was sent"):
        verify_engine(version=3, engine_version=2, expected=SCORES, scored=SCORES, tolerance=1.0)


def test_a_newer_version_is_caught_too() -> None:
    with pytest.raises(WeightSyncError, match="holds weight version 9 after version 3"):
        verify_engine(version=3, engine_version=9, expected=SCORES, scored=SCORES, tolerance=1.0)


@pytest.mark.parametrize("wrong", [-1.5, float("nan")])
def test_other_logprobs_are_caught(wrong: float) -> None:
    with pytest.raises(WeightSyncError, match="stale or partial weights"):
        verify_engine(version=1, engine_version=1, expected=[[-1.0]], scored=[[wrong]], tolerance=0.1)


def test_a_missing_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        verify_engine(version=1, engine_version=1, expected=SCORES, scored=SCORES[:1], tolerance=1.0)
