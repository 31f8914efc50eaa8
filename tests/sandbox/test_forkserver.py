"""The forkserver: what happens when parts of it die, hang or fork, and that nothing is left behind."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox import LostProcess, SandboxLimits, forked_process, machine
from rapo_rllib.sandbox.forkserver import ForkserverSandbox
from rapo_rllib.sandbox.machine import layers_in_force, probe
from rapo_rllib.tools.python import PythonTool

LIMITS = SandboxLimits(timeout_s=10)
SHORT = SandboxLimits(timeout_s=0.5)


@pytest.fixture(params=["auto", "off"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[ForkserverSandbox]:
    """A sandbox of this test alone, with the namespaces that the machine gives, and without."""
    made = ForkserverSandbox(layers_in_force(request.param, False))
    yield made
    made.close()


def ask(sandbox: ForkserverSandbox, code: str, limits: SandboxLimits = LIMITS) -> str:
    return sandbox.run(code, limits).output.decode().strip()


def parts(sandbox: ForkserverSandbox) -> tuple[psutil.Process, psutil.Process]:
    """Monitor and zygote."""
    assert sandbox._zygote is not None
    monitor = psutil.Process(sandbox._zygote.process.pid)
    return monitor, monitor.children()[0]


def soon(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_result(sandbox: ForkserverSandbox) -> None:
    result = sandbox.run("print('a')\n1 + 1", LIMITS)
    assert (result.output, result.outcome) == (b"a\n2\n", "ok")
    assert result.seconds > 0


@pytest.mark.parametrize("part", [0, 1], ids=["monitor", "zygote"])
def test_a_part_that_was_killed_is_replaced(sandbox: ForkserverSandbox, part: int) -> None:
    assert ask(sandbox, "1") == "1"
    both = parts(sandbox)
    both[part].kill()
    assert ask(sandbox, "2") == "2"
    soon(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in both))


def test_a_call_whose_zygote_dies_is_repeated(sandbox: ForkserverSandbox) -> None:
    ask(sandbox, "1")
    answers: list[str] = []
    caller = threading.Thread(target=lambda: answers.append(ask(sandbox, "import time\ntime.sleep(1)\n3")))
    caller.start()
    soon(lambda: len(parts(sandbox)[1].children()) > 0)
    parts(sandbox)[1].kill()
    caller.join()
    assert answers == ["3"]


def test_a_zygote_that_hangs_is_replaced(sandbox: ForkserverSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(sandbox, "1")
    zygote = sandbox._zygote
    parts(sandbox)[1].suspend()
    monkeypatch.setattr(forked_process, "GRACE_S", 0.2)
    answers: list[str] = []
    caller = threading.Thread(target=lambda: answers.append(ask(sandbox, "2")))
    caller.start()
    soon(lambda: sandbox._zygote is not zygote)
    monkeypatch.undo()
    caller.join()
    assert answers == ["2"]


@pytest.mark.timeout(600)
def test_floods_end_nothing_of_their_neighbours(sandbox: ForkserverSandbox) -> None:
    """Each is given up while it is about to end, or has ended, or goes on."""
    few, floods = SandboxLimits(timeout_s=60, max_output_bytes=8000), [1, 2, 100, 10**9]
    sessions = [sandbox.open(LIMITS) for _ in range(3)]
    for number, session in enumerate(sessions):
        session.run(f"x = {number}")
    zygote = sandbox._zygote

    def flood(number: int) -> str:
        code = f"for _ in range({floods[number % len(floods)]}): print('x' * 9000)"
        session = sandbox.open(few)
        outcome = (session if number % 2 else sandbox).run(code, *([] if number % 2 else [few])).outcome
        session.close()
        return outcome

    with ThreadPoolExecutor(8) as pool:
        flooded = [pool.submit(flood, number) for number in range(80)]
        answers = pool.map(lambda number: ask(sandbox, f"{number} + 1"), range(80))
        assert list(answers) == [str(number + 1) for number in range(80)]
        assert {future.result() for future in flooded} == {"output"}
    assert [session.run("x").output for session in sessions] == [b"0\n", b"1\n", b"2\n"]
    assert sandbox._zygote is zygote
    for session in sessions:
        session.close()


def test_a_process_that_is_lost_alone_leaves_the_others(sandbox: ForkserverSandbox) -> None:
    session = sandbox.open(LIMITS)
    session.run("x = 5")
    zygote, process = sandbox._zygote, parts(sandbox)[1]
    _, most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds(), most))  # no descriptor for another one
    with pytest.raises(ToolError, match="python tool: its sandbox "):
        sandbox.run("1", LIMITS)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
    assert ask(sandbox, "2") == "2"
    assert session.run("x").output == b"5\n"
    assert sandbox._zygote is zygote
    session.close()


@pytest.mark.timeout(300)
def test_a_call_ends_when_its_process_is_closed(sandbox: ForkserverSandbox) -> None:
    """Its descriptors are closed when nobody reads from them: their numbers may be another trajectory's at once."""
    files = len(os.listdir("/proc/self/fd"))
    session, neighbour = (sandbox.open(SandboxLimits(timeout_s=3000)) for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.run, "print(1, flush=True)\nwhile True: pass")
        soon(lambda: session._busy.locked())
        session.close()
        with pytest.raises(LostProcess):
            running.result()
    assert neighbour.run("2").output == b"2\n"
    with pytest.raises(LostProcess):
        session.run("3")
    neighbour.close()
    sandbox.close()
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_supervisor_without_descriptors_says_so_and_leaks_none(sandbox: ForkserverSandbox) -> None:
    ask(sandbox, "1")
    files, limits = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
    for room in range(4):  # a process has four descriptors here at first
        free = [os.dup(0) for _ in range(room + 1)]
        for number in free:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], limits[1]))
        try:
            with pytest.raises(ToolError, match=r"no way to its sandbox: .*Too many open files"):
                sandbox.open(LIMITS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(os.listdir("/proc/self/fd")) == files
    assert ask(sandbox, "2") == "2"


def test_a_module_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    sandbox = ForkserverSandbox(layers_in_force("auto", False), ["broken_module"])
    with pytest.raises(ToolError, match="No module named 'no_such_package'"):
        sandbox.run("1", LIMITS)


KILLED = """
import os, sys, tempfile, threading, time
tempfile.tempdir = sys.argv[2]
from rapo_rllib.sandbox import SandboxLimits
from rapo_rllib.sandbox.forkserver import ForkserverSandbox
from rapo_rllib.sandbox.machine import layers_in_force
sandbox = ForkserverSandbox(layers_in_force(sys.argv[1], False))
def fork():
    if os.fork() == 0:
        time.sleep(600)
threading.Timer(0.05, fork).start()  # while the zygote starts
process = sandbox.open(SandboxLimits())
process.run("open('f', 'w').write('x')")
print("ready", flush=True)
process.run("while True: pass")
"""


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_nothing_outlives_a_supervisor_that_was_killed(tmp_path: Path, namespaces: str) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", KILLED, namespaces, str(tmp_path)], stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == b"ready\n"
    children = psutil.Process(supervisor.pid).children(recursive=True)
    left = [process for process in children if "-I" in process.cmdline()]
    assert len(left) == 3  # monitor, zygote, child
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    soon(lambda: not any(process.is_running() for process in left))
    soon(lambda: not list(tmp_path.iterdir()))
    for process in set(children) - set(left):  # forked from the supervisor
        process.kill()


def test_a_sandbox_that_is_closed_leaves_no_zombie(sandbox: ForkserverSandbox) -> None:
    """Where the first process of a container takes what others leave, and reaps nothing."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    try:
        sessions = [sandbox.open(LIMITS) for _ in range(3)]
        monitor, zygote = parts(sandbox)
        left = [monitor.pid, zygote.pid, *(child.pid for child in zygote.children())]
        sandbox.close()
        assert len(left) == 5 and not any(map(psutil.pid_exists, left))
        for session in sessions:
            session.close()
    finally:
        ctypes.CDLL(None).prctl(36, 0)


def test_a_process_forked_between_two_lines_of_the_start_holds_nothing_up(
    sandbox: ForkserverSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[int] = []

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(*arguments, **options)
        forked.append(os.fork())
        if not forked[-1]:
            time.sleep(20)
            os._exit(0)
        return process

    monkeypatch.setattr(machine, "subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE))
    started = time.monotonic()
    assert ask(sandbox, "6 * 7") == "42" and time.monotonic() - started < 15
    for pid in forked:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_forked_process_has_its_own(sandbox: ForkserverSandbox) -> None:
    session = sandbox.open(LIMITS)
    session.run("x = 5")
    child = os.fork()
    if child == 0:
        session.close()
        answered = ask(sandbox, "6")
        sandbox.close()
        os._exit(0 if answered == "6" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert session.run("x").output == b"5\n"
    assert ask(sandbox, "7") == "7"
    session.close()


def test_a_hundred_calls_leave_nothing(sandbox: ForkserverSandbox) -> None:
    def held() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(parts(sandbox)[0].children(recursive=True))

    codes = ["1", "1 / 0", "import os\nos._exit(1)", "print('x' * 200000)", "open('f', 'w').write('x')"]
    for code in codes:
        ask(sandbox, code)
    soon(lambda: held()[2] == 1)
    before, zygote_files = held(), parts(sandbox)[1].num_fds()
    for number in range(100):
        ask(sandbox, codes[number % len(codes)])
    soon(lambda: held() == before)
    soon(lambda: parts(sandbox)[1].num_fds() == zygote_files)


def test_a_session_computes_nothing_between_calls(sandbox: ForkserverSandbox) -> None:
    session = sandbox.open(SandboxLimits(timeout_s=5))
    spins = "import os\nos.write(3, bytes(1))\nwhile True: pass"  # says that it is done, and goes on
    assert session.run(spins).outcome == "ok"
    child = parts(sandbox)[1].children()[0]
    soon(lambda: child.status() == psutil.STATUS_STOPPED)
    used = child.cpu_times().user
    time.sleep(0.3)
    assert child.cpu_times().user == used
    session.close()
    soon(lambda: not child.is_running())


def test_a_session_that_nobody_holds_ends(sandbox: ForkserverSandbox) -> None:
    session = sandbox.open(LIMITS)
    session.run("1")
    child = parts(sandbox)[1].children()[0]
    del session
    soon(lambda: not child.is_running())


def test_a_session_keeps_the_limits_of_each_call(sandbox: ForkserverSandbox) -> None:
    session = sandbox.open(SandboxLimits(timeout_s=0.7))
    for _ in range(3):  # more in all than one call may take
        outcome = session.run("import time\nend = time.time() + 0.3\nwhile time.time() < end: pass").outcome
        assert outcome in ("ok", "timeout")
        if outcome == "timeout":  # a busy machine; the session is over
            break
    assert sandbox.open(SHORT).run("while True: pass").outcome == "timeout"


def test_many_sessions_at_once(sandbox: ForkserverSandbox) -> None:
    sessions = [sandbox.open(LIMITS) for _ in range(40)]
    assert {session.run(f"x = {number}").outcome for number, session in enumerate(sessions)} == {"ok"}
    assert [int(session.run("x").output) for session in sessions] == list(range(40))
    assert ask(sandbox, "len(open('/dev/null').read())") == "0"
    for session in sessions:
        session.close()
    soon(lambda: not parts(sandbox)[1].children())


def test_cpu_time_is_limited_by_the_kernel_too() -> None:
    sandbox = ForkserverSandbox(layers_in_force("auto", False))
    code = "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU))"
    assert ask(sandbox, code, SandboxLimits(timeout_s=60.5)) == "(62, 62)"
    sandbox.close()


def test_signals_of_the_terminal_do_not_reach_it(sandbox: ForkserverSandbox) -> None:
    ask(sandbox, "1")
    assert all(os.getpgid(process.pid) != os.getpgrp() for process in parts(sandbox))
    parts(sandbox)[0].send_signal(signal.SIGWINCH)
    assert ask(sandbox, "2") == "2"


def test_what_is_in_force() -> None:
    everything = ("rlimits", "landlock", "seccomp", "namespaces")
    given = tuple(layer for layer in everything if probe()[layer] is None)
    assert PythonTool().sandbox.layers == given


def test_a_zygote_that_many_give_up_at_once_ends_once(sandbox: ForkserverSandbox) -> None:
    ask(sandbox, "1")
    zygote = sandbox._zygote
    assert zygote is not None
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sandbox._drop_if_gone(zygote, hangs=True), range(8)))
    assert zygote.process.returncode == 0
    assert ask(sandbox, "2") == "2"
