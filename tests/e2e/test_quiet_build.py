"""``build_algo()`` in a program of one's own: the terminal has our lines, and few of other libraries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

pytestmark = pytest.mark.e2e

PROGRAM = """
from jobs import small_config
from letters_env import Letters
algorithm = small_config({model!r}).environment(Letters).env_runners(num_env_runners=0).build_algo()
print("built")
algorithm.stop()
"""
OURS = re.compile(r"^\d\d:\d\d |^built$|^\s*$")
FEW = 4  # Ray says that it started and how it authenticates, Triton and torch's core what they lack


@pytest.mark.slow  # 28 s; in short: tests/monitoring/test_quiet.py
def test_few_lines_of_other_libraries(tmp_path: Path, small_model: str) -> None:
    path = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests" / "support")))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VLLM_")} | {"PYTHONPATH": path}
    program = PROGRAM.format(model=small_model)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    others = [line for line in (done.stdout + done.stderr).splitlines() if not OURS.match(line)]
    assert "built" in done.stdout and len(others) <= FEW, "\n".join(others)
