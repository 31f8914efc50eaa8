import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from buffer_helpers import wait_until

from rapo_rllib.tools.python import PythonTool

TOOL = PythonTool(timeout_s=30)
QUICK = PythonTool(timeout_s=1)


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
        ("import numpy as np\nfloat(np.linalg.det(np.eye(3)))", "1.0"),
        ("from sympy import *\nx = Symbol('x')\nprint(solve(x**2 - 2), integrate(x**2, (x, 0, 3)))", "[-sqrt(2), sqrt(2)] 9"),
        (
            "import itertools, collections, decimal, datetime, re, tempfile\nopen('f', 'w').write('ab')\nopen('f').read()",
            "'ab'",
        ),
        ("class A:\n    pass\nimport pickle, dataclasses\ntype(pickle.loads(pickle.dumps(A()))) is A", "True"),
    ],
)
def test_output(code: str, text: str) -> None:
    result = TOOL.run(code)
    assert (result.text, result.error) == (text, None)
    assert result.seconds > 0


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
    shown = PythonTool(preload=["numpy"]).run("import os\nprint(sorted(os.environ))")  # another sandbox than the others'
    assert shown.error is None
    assert shown.text == "['JE_ARROW_MALLOC_CONF', 'MKL_NUM_THREADS', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS']"


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
    result = QUICK.run(code)
    assert result.error == "timeout"
    assert result.text == "TimeoutError: the code ran longer than 1 s"


def test_what_was_printed_before_the_timeout_is_kept() -> None:
    assert QUICK.run("print(7, flush=True)\nwhile True: pass").text.startswith("7\nTimeoutError")


def test_memory_is_limited() -> None:
    result = PythonTool(memory_mb=200).run("x = bytearray(300 * 2**20)")
    assert (result.text, result.error) == ("MemoryError: the memory limit was reached", "memory")
    assert PythonTool(memory_mb=500).run("len(bytearray(300 * 2**20))").text == str(300 * 2**20)


def test_a_flood_of_output_is_cut_and_ended() -> None:
    tool = PythonTool(timeout_s=60, max_output_chars=100)
    result = tool.run("while True: print('x' * 50)")
    assert result.error == "output"
    assert result.text.startswith("x" * 50 + "\n")
    assert result.text.endswith("(output cut after 100 characters)")
    assert len(result.text) < 150


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


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import os\nos.fork()", "PermissionError: [Errno 1] Operation not permitted (line 2)"),
        ("import subprocess\nsubprocess.run(['true'])", "PermissionError: [Errno 1] Operation not permitted (line 2)"),
        ("import threading\nthreading.Thread(target=print).start()", "RuntimeError: can't start new thread (line 2)"),
        ("import socket\nsocket.socket()", "PermissionError: [Errno 1] Operation not permitted (line 2)"),
    ],
)
def test_what_is_refused_is_an_observation(code: str, text: str) -> None:
    result = TOOL.run(code)
    assert (result.text, result.error) == (text, "exception")


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespaces: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    num_files, before = len(os.listdir("/proc/self/fd")), set(psutil.Process().children(recursive=True))
    tool, quick = (PythonTool(timeout_s=s, namespaces=namespaces, preload=[]) for s in (5.5, 1.5))
    tool.run("import os\nos.makedirs('a/b', 0o300); open('a/b/c', 'w').close(); os.mkdir('d', 0); os.mkdir('e')")
    quick.run("open('x', 'w').write('x')\nwhile True: pass")
    tool.run("import os\nfor _ in range(900): os.mkdir('d'); os.chdir('d')")
    for _ in range(5):
        tool.run("1")
    del tool, quick
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= num_files
    assert set(psutil.Process().children(recursive=True)) <= before


def test_the_process_of_a_call_is_gone_afterwards() -> None:
    before = psutil.Process().children(recursive=True)
    TOOL.run("1")

    def others() -> set[psutil.Process]:
        monitors = psutil.Process().children()
        zygotes = [zygote for monitor in monitors for zygote in monitor.children()]
        return set(psutil.Process().children(recursive=True)) - {*before, *monitors, *zygotes}

    assert wait_until(lambda: not others(), 60)


def test_calls_do_not_see_each_other() -> None:
    assert TOOL.session() is None
    assert TOOL.run("x = 1; open('f', 'w').write('1')").error is None
    assert TOOL.run("x").error == "exception"
    assert TOOL.run("open('f')").error == "exception"


def test_many_threads_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = [result.text for result in pool.map(TOOL.run, [f"print({i} * 2)" for i in range(40)])]
    assert texts == [str(2 * i) for i in range(40)]


def test_a_trivial_call_is_quicker_than_a_start_of_python() -> None:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import numpy, sympy"], check=True)  # about 25 times as long
    assert statistics.median(TOOL.run("3 + 5").seconds for _ in range(15)) < time.monotonic() - started
