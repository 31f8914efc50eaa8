"""No acknowledged row is lost however often the owner of a Lite path is killed: ``kill_lite.py``, which is also a script."""

import json
import re
import subprocess
import sys

import pytest
from places import REPOSITORY


def check(kills: int, seed: int) -> None:
    command = [sys.executable, str(REPOSITORY / "tests" / "kill_lite.py"), "--kills", str(kills), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120 + 40 * kills)
    assert done.returncode == 0, json.dumps(done.stdout[-3000:] + done.stderr[-3000:])
    counts = {what: int(count) for count, what in re.findall(r"^ *(\d+) (.+)$", done.stdout, re.MULTILINE)}
    assert counts["kills"] == kills and counts["kills while it read"] == kills // 2
    assert counts["rows acknowledged"] and counts["step traces imported"] and counts["collections made"]


def test_killed_owners_lose_nothing_that_was_acknowledged() -> None:
    check(4, 11)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_owners_killed_many_times_lose_nothing_that_was_acknowledged() -> None:
    check(50, 12)
