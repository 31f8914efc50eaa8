"""No acknowledged row is lost however often the server of a Lite path is killed: ``kill_lite.py``, which is also a script."""

import random

import pytest
from kill_lite import BEGUN, LIMITS, KilledLite

pytestmark = pytest.mark.usefixtures("lite_programs")  # which read the limits when they start, and are found by their path


def run(folder, monkeypatch, kills: int, seed: int) -> KilledLite:
    for name, value in LIMITS.items():
        monkeypatch.setenv(name, value)
    lite = KilledLite(folder, random.Random(seed))
    lite.share_of_starts = 1.0  # every other kill
    lite.run(kills)
    print(dict(lite.counts))  # noqa: T201
    return lite


def check(lite: KilledLite, kills: int) -> None:
    assert lite.wrong == []
    assert lite.counts["kills"] == kills and lite.counts["kills while it started"] == kills // 2
    assert min(lite.counts[what] for what in BEGUN) > 0


def test_killed_servers_lose_nothing_that_was_acknowledged(tmp_path, monkeypatch):
    check(run(tmp_path, monkeypatch, 3, 11), 3)


@pytest.mark.slow
def test_servers_killed_many_times_lose_nothing_that_was_acknowledged(tmp_path, monkeypatch):
    check(run(tmp_path, monkeypatch, 25, 12), 25)
