"""The working folder: limited, in memory and of a call's own in namespaces; without them nothing can be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from rapo_rllib.sandbox import SandboxLimits
from rapo_rllib.sandbox.forkserver import ForkserverSandbox
from rapo_rllib.sandbox.machine import layers_in_force, probe

LIMITS = SandboxLimits(timeout_s=60)
WRITES = """
import mmap, os
def fill(place):
    with open(place, "w+b", buffering=0) as f:
        for _ in range(15): f.write(bytes(1 << 20))
"""
FILLS = {
    "large": "for i in range(9): fill(f'x{i}')",
    "unlinked and open": """
keep = []
for i in range(9):
    keep.append(open(f'x{i}', 'w+b', buffering=0))
    os.unlink(f'x{i}')
    for _ in range(15): keep[-1].write(bytes(1 << 20))
""",
    "without ever a name": """
keep = [os.open('.', os.O_RDWR | os.O_TMPFILE) for i in range(9)]
for f in keep:
    for _ in range(15): os.write(f, bytes(1 << 20))
""",
    "many": "for i in range(2000): os.close(os.open(str(i), os.O_CREAT))",
    "only folders": "for i in range(2000): os.mkdir(str(i), 0)",
    "deep": "for i in range(2000): os.mkdir('d'); os.chdir('d')",
}
USUAL = """
import mmap, os, shutil, tempfile
for _ in range(100):
    with open('x', 'wb') as f: f.write(bytes(1 << 20))
with tempfile.TemporaryFile() as f:
    f.write(bytes(8 << 20))
with tempfile.TemporaryDirectory() as d:
    shutil.copyfile('x', d + '/y')
    os.makedirs(d + '/a/b/c')
    with open('x', 'r+b') as f: m = mmap.mmap(f.fileno(), 0)
    os.unlink('x')
os.listdir()
"""


@pytest.fixture(scope="module", params=["required", "off"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[ForkserverSandbox]:
    if request.param == "required" and probe()["namespaces"] is not None:
        pytest.skip("this machine gives no user namespaces")
    with closing(ForkserverSandbox(layers_in_force(request.param, False))) as made:
        yield made


@pytest.mark.parametrize("name", FILLS)
def test_no_more_is_written_than_is_allowed(sandbox: ForkserverSandbox, name: str) -> None:
    result = sandbox.run(WRITES + FILLS[name], LIMITS)
    limited = b"No space left on device" if "namespaces" in sandbox.layers else b"Permission denied"
    assert result.outcome == "exception" and limited in result.output, result


def test_what_a_calculation_does_with_files_is_allowed_in_namespaces(sandbox: ForkserverSandbox) -> None:
    result = sandbox.run(USUAL, LIMITS)
    if "namespaces" in sandbox.layers:
        assert (result.output, result.outcome) == (b"[]\n", "ok")
    else:
        assert b"PermissionError: [Errno 13] Permission denied: 'x'" in result.output


def test_a_session_does_not_gather_more_than_its_limit(sandbox: ForkserverSandbox) -> None:
    with closing(sandbox.open(LIMITS)) as session:
        outcomes = [session.run(f"{WRITES}fill('{number}')").outcome for number in range(3)]
    assert outcomes[-1] == "exception"


def test_the_working_folder_is_empty_and_stays_so(sandbox: ForkserverSandbox) -> None:
    assert sandbox.run("import os\nos.listdir()", LIMITS).output == b"[]\n"
    sandbox.run("open('x', 'w').close()", LIMITS)
    assert sandbox.run("import os\nos.listdir()", LIMITS).output == b"[]\n"


def test_space_cannot_be_reserved(sandbox: ForkserverSandbox) -> None:
    result = sandbox.run("import os\nos.posix_fallocate(os.open('x', os.O_RDWR | os.O_CREAT), 0, 1 << 20)", LIMITS)
    assert result.output.startswith(b"PermissionError: ")
