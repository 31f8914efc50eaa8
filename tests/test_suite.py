"""The suite's own parts: what its lists name exists, and a limit of time is kept and told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gates import GATES
from groups import LARGE, LONGEST
from pure_tests import PURE

REPOSITORY = Path(__file__).resolve().parents[1]
TIMED = """
import pytest

@pytest.fixture
def costly():
    raise OSError

def test_one(costly): ...
def test_other(): ...
"""


def test_files_that_lists_name_are_there() -> None:
    named = [*LARGE, *(f"tests/{name}" for name in PURE), *(name for name in LONGEST if name.endswith(".py"))]
    assert [name for name in named if not (REPOSITORY / name).is_file()] == []
    patterns = {pattern for files in GATES.values() for pattern in files}
    assert [pattern for pattern in patterns if not list((REPOSITORY / "tests").glob(pattern))] == []


@pytest.mark.process
def test_what_there_is_no_time_for_is_counted_and_sets_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "test_timed.py").write_text(TIMED)
    command = [sys.executable, "-m", "pytest", "-p", "time_limit", "-p", "no:cacheprovider", "-q", "test_timed.py"]
    environment = {"PYTHONPATH": str(REPOSITORY / "tests" / "support")}
    runs = [
        subprocess.run([*command, "--minutes", minutes], cwd=tmp_path, env=environment, capture_output=True, text=True)
        for minutes in ("0", "60")
    ]
    assert [run.returncode for run in runs] == [0, 1]
    assert "2 tests were not run: the time was used up" in runs[0].stdout and "2 skipped in" in runs[0].stdout
    assert "were not run" not in runs[1].stdout and "1 passed, 1 error in" in runs[1].stdout


@pytest.mark.process
def test_an_ignored_sigint_is_heard_again() -> None:
    """In the background of a script it is ignored, and tests send it to themselves and to what they start."""
    said = subprocess.run(
        [
            "sh",
            "-c",
            "trap '' INT; exec \"$0\" -c 'import conftest, signal; print(signal.getsignal(signal.SIGINT))'",
            sys.executable,
        ],
        env={"PYTHONPATH": os.pathsep.join([str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "support")])},
        capture_output=True,
        text=True,
    )
    assert "default_int_handler" in said.stdout, said


@pytest.mark.parametrize("time", ["first", "second"])
def test_no_handler_of_sigint_outlives_its_test(time: str) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.process
@pytest.mark.slow  # the pure tests once more, by themselves: nothing else tells whether they still are
def test_the_pure_tests_are_pure() -> None:
    done = subprocess.run([sys.executable, "-m", "pytest", "--pure", "-q"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
