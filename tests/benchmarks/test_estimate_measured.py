"""``benchmarks/estimate.py``: its job with an engine and a learner apart, measured against its estimate."""

from __future__ import annotations

from pathlib import Path

import pytest
from estimate import compared, table


def test_a_line_of_the_table() -> None:
    found = {
        "estimated": {"main": 3 * 2**30, "command": 1, "all": 4 * 2**30},
        "measured": {"main": 2 * 2**30, "all": 4 * 2**30},
    }
    assert table({"job": found}).splitlines()[2:] == [
        "| job | main | 3.00 | 2.00 | 1.50 |",
        "| job | all | 4.00 | 4.00 | 1.00 |",
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_engine_and_learner_take_what_was_estimated(tmp_path: Path) -> None:
    found = compared("engine and learner apart", tmp_path)
    for role in ("engine", "learner", "all"):
        assert found["estimated"][role] == pytest.approx(found["measured"][role], rel=0.25), role
