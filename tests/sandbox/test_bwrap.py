"""The bwrap backend keeps to the interface of the forkserver, and holds the same attacks off."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from attacks import ATTACKS
from world import World

from rapo_rllib.sandbox import SandboxLimits, SandboxSettings, shared_sandbox
from rapo_rllib.sandbox.base import Sandbox
from rapo_rllib.tools.python import PythonTool

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="the program bwrap is not installed (bubblewrap)")
LIMITS = SandboxLimits(timeout_s=20, max_output_bytes=4096)
CHOSEN = [a for a in ATTACKS if a.harmless and a.goal in ("secret", "canary", "arrives", "victim")]


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return shared_sandbox(SandboxSettings(backend="bwrap"))


@needs_bwrap
@pytest.mark.parametrize(
    ("code", "output", "outcome"),
    [
        ("print('a')\n1 + 1", "a\n2\n", "ok"),
        ("1 / 0", "ZeroDivisionError: division by zero\n", "exception"),
        ("x = (", "SyntaxError: '(' was never closed\n", "syntax"),
        ("import numpy\nint(numpy.arange(4).sum())", "6\n", "ok"),
        ("open('f', 'w').write('ab')", "2\n", "ok"),
        ("x = bytearray(8 << 30)", "MemoryError: the memory limit was reached\n", "memory"),
        ("import ctypes\nctypes.string_at(0)", "", "killed"),
        ("import os\nos._exit(0)", "", "exit"),
        (
            "import os\nos.getcwd(), os.path.exists('/etc/passwd'), os.path.exists('/proc/self')",
            "('/scratch/work', False, False)\n",
            "ok",
        ),
    ],
)
def test_calls(sandbox: Sandbox, code: str, output: str, outcome: str) -> None:
    result = sandbox.run(code, LIMITS)
    assert (result.output.decode(), result.outcome) == (output, outcome)


@needs_bwrap
def test_limits(sandbox: Sandbox) -> None:
    before = len(os.listdir("/proc/self/fd")), len(psutil.Process().children(recursive=True))
    assert sandbox.run("while True: pass", SandboxLimits(timeout_s=0.5)).outcome == "timeout"
    assert sandbox.run("while True: print('x' * 99)", LIMITS).outcome == "output"
    full = sandbox.run("for i in range(2000): open(str(i), 'w').close()", LIMITS)
    assert full.output.startswith(b"OSError: [Errno 28] No space left on device")
    session = sandbox.open(LIMITS, 1)
    assert session.run("x = 3").outcome == "ok"
    assert session.run("x").output == b"3\n"
    session.close()
    assert (len(os.listdir("/proc/self/fd")), len(psutil.Process().children(recursive=True))) == before


@pytest.fixture(scope="module")
def escaped() -> Iterator[dict[str, bool]]:
    sandbox = shared_sandbox(SandboxSettings(backend="bwrap"))
    folder = Path(tempfile.mkdtemp(prefix="rapo-attacks-"))
    world = World(folder, CHOSEN, os.geteuid())
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda attack: sandbox.run(world.code(attack), LIMITS), CHOSEN)
        outputs = [result.output.decode("utf-8", "replace") for result in results]
    yield {attack.name: world.escaped(attack, output) for attack, output in zip(CHOSEN, outputs, strict=True)}
    world.close()
    shutil.rmtree(folder)


@needs_bwrap
def test_attacks(escaped: dict[str, bool]) -> None:
    assert [name for name, has in escaped.items() if has] == []
    assert len(escaped) == len(CHOSEN) > 40


def test_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match=r"backend = 'bwrap': there is no program bwrap here: install bubblewrap"):
        PythonTool(backend="bwrap", packages=["numpy"])
