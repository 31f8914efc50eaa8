"""What ``benchmarks/staleness.py`` trains: one job on both sides, and tools that are slow now and then. Nothing is timed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import staleness
from staleness_parts.slow_env import SlowTools
from tiny_models import save_tiny_model


def test_both_sides_are_one_job_but_for_what_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["staleness.py"])
    options, model = staleness.parse(), str(save_tiny_model(tmp_path))
    waits, goes_on = (staleness.config(options, model, k, repetition=1) for k in (0, options.max_staleness))
    waits.validate()
    goes_on.validate()
    first, second = waits.to_dict(), goes_on.to_dict()
    assert {key for key in first if first[key] != second[key]} == {"max_staleness"}
    assert (waits.max_staleness, goes_on.max_staleness) == (0, 2)


def test_a_slow_call_is_drawn_and_what_was_written_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    env = SlowTools({"fast_s": 0.25, "slow_s": 8.0, "slow_share": 0.5, "seed": 0})
    for seed in range(40):
        assert env.reset(seed=seed)[0] == f"Write about the number {seed}."
        assert env.step("e")[1:4] == (1.0, False, False) and env.step("eaea")[1:4] == (0.5, False, False)
        assert env.step("")[1:4] == (0.0, True, False)
    assert len(slept) == 80 and set(slept) == {0.25, 8.0} and 20 < slept.count(8.0) < 60
