"""A checkpoint folder appears whole or not at all, and what is not whole is refused."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from rapo_rllib.checkpoints.folder import MANIFEST, atomic_directory, check_whole, finish_replacement, whole_checkpoints
from rapo_rllib.errors import CheckpointError


def write(path: Path, text: str = "weights", iteration: int = 1) -> Path:
    with atomic_directory(path, iteration=iteration) as folder:
        (folder / "a").mkdir()
        (folder / "a" / "w").write_text(text)
        (folder / "state").write_text("state")
    return path


def test_it_is_whole_and_says_what_it_holds(tmp_path: Path) -> None:
    path = write(tmp_path / "c", iteration=7)
    facts = check_whole(path)
    assert facts["iteration"] == 7
    assert sorted(facts["files"]) == ["a/w", "state"]
    (path / "more").write_text("by others")
    assert check_whole(path) == facts
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_an_exception_leaves_the_old_one(tmp_path: Path) -> None:
    path = write(tmp_path / "c", "old")
    with pytest.raises(OSError, match="disk is full"), atomic_directory(path) as folder:
        (folder / "state").write_text("new")
        raise OSError("disk is full")
    assert (path / "a" / "w").read_text() == "old"
    assert check_whole(path)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_new_one_takes_the_place_of_an_old_or_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    assert (write(tmp_path / "c", "one") / "a" / "w").read_text() == "one"
    assert (write(tmp_path / "c", "two") / "a" / "w").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_folder_that_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "c"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    with pytest.raises(CheckpointError, match=r"c holds 'thesis\.tex', which is no checkpoint's and would be lost"):
        write(mine)
    with pytest.raises(CheckpointError, match=r"c2 holds 'notes'"):
        (write(tmp_path / "c2") / "notes").write_text("mine")
        write(tmp_path / "c2")
    assert (mine / "thesis.tex").read_text() == "mine" and check_whole(tmp_path / "c2")


def test_between_the_two_renames_the_old_one_is_not_lost(tmp_path: Path) -> None:
    path = write(tmp_path / "c", "old")
    path.rename(tmp_path / ".c.replaced")  # where a kill may leave it
    finish_replacement(path)
    assert (path / "a" / "w").read_text() == "old"
    (tmp_path / ".c.partial").mkdir()
    (tmp_path / ".c.partial" / "state").write_text("half")
    assert (write(path, "new") / "a" / "w").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / MANIFEST).unlink(), f"{MANIFEST} is missing"),
        (lambda path: (path / MANIFEST).write_text('{"files": {"a/'), f"{MANIFEST} is missing or cut short"),
        (lambda path: (path / "a" / "w").unlink(), "a/w is missing or cut short"),
        (lambda path: (path / "a" / "w").write_text("weigh"), "a/w is missing or cut short"),
        (lambda path: (path / "a" / "w").write_text("wEights"), "a/w is not what was written"),
    ],
)
def test_what_is_not_whole_is_refused(tmp_path: Path, damage, message: str) -> None:
    path = write(tmp_path / "c")
    damage(path)
    with pytest.raises(CheckpointError, match=message):
        check_whole(path)


def test_the_furthest_trained_comes_last_and_parts_are_left_out(tmp_path: Path) -> None:
    for name, iteration in (("c0", 1), ("c2", 3), ("c1", 2), ("c9", 9), ("c8", 8)):
        write(tmp_path / name, iteration=iteration)
    (tmp_path / "c9" / "a" / "w").unlink()
    (tmp_path / "c8" / MANIFEST).write_text("{")
    assert [path.name for path in whole_checkpoints(tmp_path)] == ["c0", "c1", "c2"]


@pytest.mark.process
def test_kill_at_any_moment_leaves_one_that_is_whole(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rapo_rllib.checkpoints.folder import atomic_directory\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    with atomic_directory(Path(sys.argv[1]), iteration=n) as folder:\n"
        "        for i in range(20): (folder / str(i)).write_bytes(bytes([n % 256]) * 20000)\n"
        "    print(n, flush=True)\n"
    )
    path, last = tmp_path / "c", 0
    for wait in (0.0, 0.003, 0.011, 0.017, 0.023):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        finish_replacement(path)
        last = check_whole(path)["iteration"]
        assert last >= 1
        assert len({(path / str(i)).read_bytes() for i in range(20)}) == 1


def test_without_descriptors_it_says_so_and_leaves_the_old_one(tmp_path: Path) -> None:
    path, limit = write(tmp_path / "c"), resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[IO[bytes]] = []
    try:
        with pytest.raises(CheckpointError) as told, atomic_directory(path, iteration=2) as folder:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4, limit[1]))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(open("/dev/null", "rb"))  # noqa: SIM115
            (folder / "w").write_text("new")
    finally:
        for file in taken:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert f"no file descriptors left to write in {tmp_path} for the checkpoint c" in str(told.value)
    assert "ulimit -n" in str(told.value) and "Too many open files" in str(told.value)
    assert check_whole(path)["iteration"] == 1
    assert check_whole(write(path, "new", iteration=3))["iteration"] == 3
