import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rapo_rllib.tools.python import PythonTool

TOOL = PythonTool(timeout_s=5)
QUICK = PythonTool(timeout_s=1)


def processes_with(mark: str) -> list[int]:
    """Ids of running processes whose arguments contain ``mark``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("3 + 5", "8"),
        ("\n  x = 4\n  x * 2\n", "8"),
        ("print(1)\nprint(2)", "1\n2"),
        ("print(1)\n2", "1\n2"),
        ("'a'", "'a'"),
        ("None", "(no output)"),
        ("x = 3", "(no output)"),
        ("print('ä → ∑')", "ä → ∑"),
        ("```python\n1 + 1\n```", "2"),
        ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nf(5)", "120"),
        ("import math, fractions, statistics, json\nmath.sqrt(16)", "4.0"),
        ("import sys\nsys.exit()", "(no output)"),
        ("print(1)\nexit()\nprint(2)", "1"),
        ("import sys; print('oh', file=sys.stderr)", "oh"),
        ("import numpy as np\nint(np.arange(4).sum())", "6"),
    ],
)
def test_output(code: str, text: str) -> None:
    result = TOOL.run(code)
    assert (result.text, result.error) == (text, None)
    assert 0 < result.seconds < 5


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        ("", "(no code)", "empty"),
        (" \n ", "(no code)", "empty"),
        ("x = (", "SyntaxError: '(' was never closed", "syntax"),
        ("a = 1\nb = = 2", "SyntaxError: invalid syntax (line 2)", "syntax"),
        ("1\0", "SyntaxError: source code string cannot contain null bytes", "syntax"),
        ("1 / 0", "ZeroDivisionError: division by zero", "exception"),
        ("print(1)\ny", "1\nNameError: name 'y' is not defined (line 2)", "exception"),
        ("raise SystemError('x')", "SystemError: x", "exception"),
        ("int('x')", "ValueError: invalid literal for int() with base 10: 'x'", "exception"),
        ("input()", "EOFError: EOF when reading a line", "exception"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "exception"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "E: <exception str() failed> (line 3)", "exception"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "Killed: the process ended by a signal", "killed"),
    ],
)
def test_failures_are_short_observations(code: str, text: str, error: str) -> None:
    result = TOOL.run(code)
    assert result.error == error
    # Python versions word the null byte differently ("ValueError", "SyntaxError")
    assert result.text == text or ("\0" in code and "null bytes" in result.text)


def test_the_parents_environment_is_invisible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAPO_SECRET", "swordfish")
    shown = TOOL.run("import os\nprint(sorted(os.environ), open('/proc/self/environ').read(), os.popen('env').read())")
    assert shown.error is None
    assert "OPENBLAS_NUM_THREADS" in shown.text
    assert "swordfish" not in shown.text
    assert "HOME" not in shown.text


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "10 ** 10 ** 8",
        "import os\nos.close(1); os.close(2)\nwhile True: pass",
    ],
)
def test_endless_code_ends(code: str) -> None:
    started = time.monotonic()
    result = QUICK.run(code)
    assert result.error == "timeout"
    assert result.text == "TimeoutError: the code ran longer than 1 s"
    assert time.monotonic() - started < 5


def test_what_was_printed_before_the_timeout_is_kept() -> None:
    assert QUICK.run("print(7, flush=True)\nwhile True: pass").text.startswith("7\nTimeoutError")


def test_memory_is_limited() -> None:
    result = PythonTool(memory_mb=200).run("x = bytearray(300 * 2**20)")
    assert (result.text, result.error) == ("MemoryError: the memory limit was reached", "memory")
    assert PythonTool(memory_mb=500).run("len(bytearray(300 * 2**20))").text == str(300 * 2**20)


def test_a_flood_of_output_is_cut_and_ended() -> None:
    tool = PythonTool(timeout_s=20, max_output_chars=100)
    result = tool.run("while True: print('x' * 50)")
    assert result.error == "output"
    assert result.text.startswith("x" * 50 + "\n")
    assert result.text.endswith("(output cut after 100 characters)")
    assert len(result.text) < 150
    assert result.seconds < 10


def test_long_output_of_code_that_ends_is_cut() -> None:
    result = PythonTool(max_output_chars=10).run("print('ä' * 20)")
    assert result.text == "ä" * 10 + "\n... (output cut after 10 characters)"
    assert result.error == "output"


def test_output_that_is_no_text() -> None:
    result = TOOL.run("import sys\nn = sys.stdout.buffer.write(b'a\\xff\\xfeb')")
    assert (result.text, result.error) == ("a��b", None)


def test_input_that_is_no_unicode() -> None:
    assert TOOL.run("print('\ud800')").text == "?"


def test_files_are_limited_in_size() -> None:
    result = TOOL.run("open('big', 'wb').write(bytes(64 * 2**20))")
    assert result.error == "exception"
    assert "File too large" in result.text


FORK = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
    os._exit(0)
time.sleep(0.3)
{end}
"""


@pytest.mark.parametrize(("end", "error"), [("", None), ("while True: pass", "timeout"), ("1 / 0", "exception")])
def test_a_daemon_does_not_survive(end: str, error: str | None) -> None:
    result = QUICK.run(FORK.format(end=end))
    assert result.error == error
    pid = int(result.text.split()[0])
    assert not alive(pid)


def test_a_process_in_a_clean_environment_and_session_does_not_survive() -> None:
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '77'], env={}, start_new_session=True, stdout=-3).pid)"
    pid = int(TOOL.run(code).text)
    assert not alive(pid)


def test_a_runner_that_kills_its_supervisor_ends_too() -> None:
    result = PythonTool(timeout_s=0.2).run(
        "import os, time\nprint(os.getpid(), flush=True)\nos.kill(os.getppid(), 9)\ntime.sleep(60)"
    )
    assert result.error == "timeout"
    deadline = time.monotonic() + 5  # nobody waits for it but init
    while alive(int(result.text.split()[0])):
        assert time.monotonic() < deadline


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    where = Path(TOOL.run("import os\nprint(os.getcwd())").text)
    assert where.parent == tmp_path
    TOOL.run(
        "import os\nos.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a/b', 0); os.chmod('a', 0); os.chmod('.', 0)"
    )
    QUICK.run("open('x', 'w').write('x')\nwhile True: pass")
    assert list(tmp_path.iterdir()) == []
    num_files = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        TOOL.run("1")
    assert len(os.listdir("/proc/self/fd")) <= num_files
    assert not [pid for pid in processes_with("rapo-python-") if alive(pid)]


def test_the_process_of_a_call_is_gone_afterwards() -> None:
    pids = [int(pid) for pid in TOOL.run("import os\nprint(os.getpid(), os.getppid())").text.split()]
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_calls_do_not_see_each_other() -> None:
    TOOL.run("x = 1; open('f', 'w').write('1')")
    assert TOOL.run("x").error == "exception"
    assert TOOL.run("open('f')").error == "exception"


def test_many_threads_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = [result.text for result in pool.map(TOOL.run, [f"print({i} * 2)" for i in range(40)])]
    assert texts == [str(2 * i) for i in range(40)]


def test_a_trivial_call_is_quick() -> None:
    # about 25 ms on an idle machine; the bound leaves room for a busy one
    assert statistics.median(TOOL.run("3 + 5").seconds for _ in range(15)) < 0.4
