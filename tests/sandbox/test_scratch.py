"""Scratch folders on disk: what counts, whatever code does to hide it, and that nobody waits for another one's files."""

from __future__ import annotations

import ctypes
import json
import mmap
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from rapo_rllib.sandbox import LostProcess, SandboxLimits
from rapo_rllib.sandbox.forkserver import ForkserverSandbox
from rapo_rllib.sandbox.inside import scratch
from rapo_rllib.sandbox.inside.warden import Orders, Warden
from rapo_rllib.sandbox.machine import layers_in_force

MEGA = 2**20
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
NOBODY = 65534
LIMITS = SandboxLimits(timeout_s=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scratch folder of this process, as the zygote makes it."""
    made = tmp_path / "1"
    made.mkdir(mode=0o700)
    return made


def is_over(folder: Path, num_bytes: int = 2 * MEGA, num_files: int = 50) -> bool:
    return scratch.is_over(str(folder), os.getpid(), num_bytes, num_files)


def alone(check: Callable[..., None], *arguments: object) -> None:
    """Run ``check`` in a new process: what earlier tests left open in this one would count."""
    process = multiprocessing.get_context("spawn").Process(target=check, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0, "see the traceback that the process printed"


def write(path: Path, megabytes: int = 4) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, os.urandom(megabytes * MEGA))
    return fd


def deep(folder: Path, depth: int) -> int:
    """Nested folders with long names; the innermost one."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    return fd


def test_files_and_folders_count(folder: Path) -> None:
    alone(check_files_and_folders_count, folder)


def check_files_and_folders_count(folder: Path) -> None:
    assert not is_over(folder)
    os.close(write(folder / "x"))
    (folder / "d").mkdir()
    (folder / "d" / "e").mkdir()
    assert is_over(folder) and not is_over(folder, num_bytes=5 * MEGA)
    assert is_over(folder, 5 * MEGA, 2) and not is_over(folder, 5 * MEGA, 30)  # this process may have some, too


def test_an_open_file_with_a_name_counts_once(folder: Path) -> None:
    alone(check_an_open_file_with_a_name_counts_once, folder)


def check_an_open_file_with_a_name_counts_once(folder: Path) -> None:
    fd = write(folder / "x")
    assert is_over(folder) and not is_over(folder, num_bytes=6 * MEGA)
    os.close(fd)


def test_a_file_without_a_name_counts_while_it_is_open(folder: Path) -> None:
    alone(check_a_file_without_a_name_counts_while_it_is_open, folder)


def check_a_file_without_a_name_counts_while_it_is_open(folder: Path) -> None:
    fd = write(folder / "x")
    other = os.dup(fd)
    (folder / "x").unlink()
    assert is_over(folder) and not is_over(folder, num_bytes=6 * MEGA)  # once
    os.close(fd), os.close(other)
    assert not is_over(folder)
    fd = os.open(folder, os.O_RDWR | os.O_TMPFILE)
    os.write(fd, os.urandom(4 * MEGA))
    assert is_over(folder)
    os.close(fd)


def test_a_file_without_a_name_counts_while_it_is_mapped(folder: Path) -> None:
    alone(check_a_file_without_a_name_counts_while_it_is_mapped, folder)


def check_a_file_without_a_name_counts_while_it_is_mapped(folder: Path) -> None:
    fd = write(folder / "x")
    address = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)  # mmap.mmap would keep it open
    os.close(fd)
    assert not is_over(folder, num_bytes=6 * MEGA)
    (folder / "x").unlink()
    assert is_over(folder, num_bytes=15 * MEGA) and not is_over(folder, num_bytes=17 * MEGA)  # as large as it can be
    libc.munmap(ctypes.c_void_p(address), 4096)
    assert not is_over(folder)


def test_a_path_can_be_too_long_to_be_opened(folder: Path) -> None:
    alone(check_a_path_can_be_too_long_to_be_opened, folder)


def check_a_path_can_be_too_long_to_be_opened(folder: Path) -> None:
    innermost = deep(folder, 40)
    fd = os.open("x", os.O_RDWR | os.O_CREAT, dir_fd=innermost)
    os.write(fd, os.urandom(4 * MEGA))
    os.close(fd)
    os.close(innermost)
    assert is_over(folder, num_files=200) and not is_over(folder, 6 * MEGA, 200)


def test_too_many_folders_in_folders_are_over(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    os.close(deep(folder, 80))
    assert is_over(folder, num_files=1000)
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(scratch.removal(str(folder)))
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize("mode", [0o300, 0o400, 0])
def test_folders_that_nobody_may_enter_are_counted_and_removed(folder: Path, mode: int) -> None:
    """As a user who may not read everything."""
    (folder / "d").mkdir()
    for number in range(60):
        (folder / "d" / str(number)).touch()
    for path in (folder.parent, folder, folder / "d"):
        os.chown(path, *((NOBODY, NOBODY) if os.geteuid() == 0 else (-1, -1)))
    (folder / "d").chmod(mode)
    alone(check_as_nobody, folder.parent)
    assert not folder.exists()


def check_as_nobody(parent: Path) -> None:
    os.chdir(parent)  # the folders above are not everybody's
    if os.geteuid() == 0:
        os.setgid(NOBODY), os.setuid(NOBODY)
    assert scratch.is_over("1", os.getpid(), MEGA, 50) and not scratch.is_over("1", os.getpid(), MEGA, 90)
    list(scratch.removal("1"))


def test_no_more_is_looked_at_than_is_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(500):
        (folder / str(number)).touch()
    looked: list[str] = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **options: looked.append(path) or stat(path, **options))
    assert is_over(folder, num_files=20)
    assert len(looked) == 21


def test_removal_pauses(folder: Path) -> None:
    for number in range(50):
        (folder / str(number)).touch()
        (folder / f"{number}d").mkdir()
        (folder / f"{number}d" / "inner").mkdir()
    assert len(list(scratch.removal(str(folder)))) >= 200  # files, folders that are moved, the same again, and what is in them
    assert not folder.exists()


def test_orders_never_wait_and_are_never_lost() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    orders = Orders(ours)
    for number in range(3000):
        orders.give("remove", number)
    assert orders.waiting
    heard: list[int] = []
    while len(heard) < 3000:
        heard.append(json.loads(theirs.recv(4096))["number"])
        orders.flush()
    assert heard == list(range(3000))
    assert orders.over() is None
    ours.close(), theirs.close()


def test_a_warden_does_a_little_at_a_time(folder: Path) -> None:
    """While a large folder is removed it hears of others, and looks at them."""
    for number in range(1500):
        (folder / str(number)).touch()
    (folder.parent / "2").mkdir()
    os.close(write(folder.parent / "2" / "x"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    warden, orders = Warden(str(folder.parent), theirs), Orders(ours)
    orders.give("remove", 1)
    warden.work()
    orders.give("watch", 2, pid=os.getpid(), bytes=2 * MEGA, files=50)
    warden.work()
    assert folder.exists()
    assert orders.over() == 2
    assert warden.patience_s() == 0
    while warden.patience_s() is not None:
        warden.work()
    assert not folder.exists()
    ours.close(), theirs.close()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ForkserverSandbox]:
    """Without namespaces."""
    made = ForkserverSandbox(layers_in_force("off", False))
    made.run("1", LIMITS)
    yield made
    made.close()


WRITES = """
import mmap, os, time
def fill(place="x", number=0):
    f = open(f"{place}{number}", "w+b", buffering=0)
    for _ in range(8): f.write(bytes(2 << 20))
    return f
"""
FILLS = {
    "unlinked and open": "keep = []\nfor i in range(50):\n    keep.append(fill('x', i))\n    os.unlink(f'x{i}')",
    "without ever a name": """
keep = [os.open('.', os.O_RDWR | os.O_TMPFILE) for i in range(50)]
for f in keep:
    for _ in range(8): os.write(f, bytes(2 << 20))
""",
    "unlinked and mapped": """
import ctypes
for i in range(50):
    with fill('x', i) as f: ctypes.CDLL(None).mmap(None, 4096, 1, 1, f.fileno(), 0)
    os.unlink(f'x{i}')
""",
    "deep": "for i in range(40):\n    os.mkdir('d' * 200); os.chdir('d' * 200)\nfor i in range(50): fill('x', i).close()",
    "in a folder that cannot be listed": "os.mkdir('d', 0o300)\nfor i in range(50): fill('d/x', i).close()",
    "through a mapping": """
for i in range(50):
    f = os.open(f'x{i}', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 16 << 20)
    mmap.mmap(f, 16 << 20)[:] = bytes(16 << 20); os.close(f)
""",
    "empty and hidden": "os.mkdir('d', 0o300)\nfor i in range(200_000): os.close(os.open(f'd/{i}', os.O_CREAT))",
    "only folders": "for i in range(200_000): os.mkdir(str(i), 0)",
}


@pytest.mark.parametrize("name", FILLS)
def test_whoever_fills_the_disk_is_killed(sandbox: ForkserverSandbox, name: str) -> None:
    result = sandbox.run(f"{WRITES}{FILLS[name]}\ntime.sleep(99)", LIMITS)
    assert result.outcome == "scratch"


def test_mapped_files_count_where_a_link_leads_to_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "link"))
    sandbox = ForkserverSandbox(layers_in_force("off", False))
    assert sandbox.run(f"{WRITES}{FILLS['unlinked and mapped']}\ntime.sleep(99)", LIMITS).outcome == "scratch"
    sandbox.close()


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_space_cannot_be_reserved(namespaces: str) -> None:
    sandbox = ForkserverSandbox(layers_in_force(namespaces, False))
    result = sandbox.run("import os\nos.posix_fallocate(os.open('x', os.O_RDWR | os.O_CREAT), 0, 1 << 20)", LIMITS)
    assert result.output == b"PermissionError: [Errno 1] Operation not permitted (line 2)\n"
    sandbox.close()


def test_what_a_calculation_does_with_files_is_allowed(sandbox: ForkserverSandbox) -> None:
    code = """
import mmap, os, shutil, tempfile, time
for _ in range(100):
    with open('x', 'wb') as f: f.write(bytes(1 << 20))
with tempfile.TemporaryFile() as f:
    f.write(bytes(8 << 20))
    time.sleep(0.1)
with tempfile.TemporaryDirectory() as d:
    shutil.copyfile('x', d + '/y')
    os.makedirs(d + '/a/b/c')
    time.sleep(0.1)
    with open('x', 'r+b') as f: m = mmap.mmap(f.fileno(), 0)
    os.unlink('x')
    time.sleep(0.1)
os.listdir()
"""
    result = sandbox.run(code, LIMITS)
    assert (result.output, result.outcome) == (b"[]\n", "ok")


def soon(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_short_call_of_a_session_leaves_is_looked_at(sandbox: ForkserverSandbox) -> None:
    """However short each call is, a session does not gather more than its limit."""
    session = sandbox.open(LIMITS, 1)
    zygote = psutil.Process(sandbox._running[0].process.pid).children()[0]
    outcomes = []
    with pytest.raises(LostProcess):
        for number in range(3):
            code = f"f = open('{number}', 'wb', buffering=0)\nfor _ in range(15): f.write(bytes(1 << 20))"
            outcomes.append(session.run(code).outcome)
        soon(lambda: not zygote.children())
        for _ in range(2):
            outcomes.append(session.run("1").outcome)
    assert outcomes[-1] == "scratch" and set(outcomes[:-1]) <= {"ok"}
    session.close()


def test_nobody_waits_for_the_removal_of_another_ones_files() -> None:
    with closing(ForkserverSandbox(layers_in_force("off", False))) as sandbox:  # its monitor removes nothing else
        check_that_nobody_waits(sandbox)


def check_that_nobody_waits(sandbox: ForkserverSandbox) -> None:
    sandbox.run("1", LIMITS)
    running = sandbox._running[0]
    monitor = psutil.Process(running.process.pid)
    session = sandbox.open(LIMITS, 1)
    place = Path(session.run("import os\nprint(os.getcwd())").output.decode().strip())
    (place / "x").touch()
    monitor.suspend()
    try:
        session.close()
        soon(lambda: not monitor.children()[0].children())
        for _ in range(3):
            assert sandbox.run("1 + 1", LIMITS).output == b"2\n"
        assert (place / "x").exists()
    finally:
        monitor.resume()
    soon(lambda: not place.exists())


def test_a_process_that_has_ended_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is waited for, what it had open belongs to root, and asking for it is refused to anybody else."""

    def refused(path: str) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setattr(scratch.os, "listdir", refused)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert not scratch.is_over(str(tmp_path), ended.pid, 100, 1)
    ended.wait()
    with pytest.raises(PermissionError):
        scratch.is_over(str(tmp_path), os.getpid(), 100, 1)
