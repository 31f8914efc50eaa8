"""Every attack, with and without user namespaces, as root and not as root; the harmless ones also without a sandbox.

Two of the four ways are slow tests where there are namespaces: with the most that holds code, and with the least, it is tried
each time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from attacks import AFTER_POISON, ATTACKS, CLEAN, Attack
from layouts import UNNEEDED
from places import SUPPORT
from world import ENVIRONMENT, World, as_user

from rapo_rllib.sandbox.machine import probe

PACKAGE = Path(__file__).resolve().parents[2] / "rapo_rllib"
NOBODY = 65534
NAMESPACES = probe()["namespaces"] is None
MODES = [
    pytest.param(("required", 0), id="namespaces-root"),
    pytest.param(("required", NOBODY), id="namespaces-user", marks=[pytest.mark.slow] if os.geteuid() == 0 else []),
    pytest.param(("off", 0), id="plain-root", marks=[pytest.mark.slow] if NAMESPACES else []),
    pytest.param(("off", NOBODY), id="plain-user"),
]


class Outcome(NamedTuple):
    escaped: bool
    outcome: str
    seconds: float
    after: str  # what the next call printed


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix="rapo-attacks-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def parts(open_folder: Path) -> Path:
    """The driver and what it needs of the package, where every user can read it."""
    here = open_folder / "parts"
    shutil.copytree(PACKAGE / "sandbox", here / "rapo_rllib" / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "errors.py", here / "rapo_rllib")
    (here / "rapo_rllib" / "__init__.py").touch()
    shutil.copy(SUPPORT / "driver.py", here)
    return here


@pytest.fixture(scope="module")
def public_python(open_folder: Path) -> str:
    """An interpreter that every user can run: ours, or a copy where ours lies in somebody's home."""
    real = os.path.realpath(sys.executable)
    try:
        subprocess.run(as_user(NOBODY, [real, "-I", "-S", "-c", "import json"]), check=True, capture_output=True, cwd="/")
        return real
    except (OSError, subprocess.CalledProcessError):
        stdlib = Path(sysconfig.get_path("stdlib"))
        prefix = open_folder / "python"
        shutil.copytree(stdlib, prefix / "lib" / stdlib.name, ignore=UNNEEDED)
        (prefix / "bin").mkdir()
        return str(shutil.copy(real, prefix / "bin" / Path(real).name))


def snippet(world: World, attack: Attack) -> dict[str, Any]:
    """What the driver is told: those that must end do so soon, the others have time on a busy machine too."""
    codes = [world.code(attack), *([AFTER_POISON] if attack.goal == "poison" else [])]
    timeout_s = 20.0 if attack.goal != "ends" else 0.2 if attack.outcomes == ("timeout",) else 1.0
    return {"codes": codes, "timeout_s": timeout_s}


def drive(
    python: str, parts: Path, uid: int, namespaces: str, snippets: list[dict[str, Any]], preload: list[str]
) -> dict[str, Any]:
    paths = [str(parts), *([] if uid else [path for path in sys.path if path.endswith("site-packages")])]
    done = subprocess.run(
        as_user(uid, [python, str(parts / "driver.py")]),
        input=json.dumps({"namespaces": namespaces, "snippets": snippets, "preload": preload}),
        capture_output=True,
        text=True,
        cwd="/",
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=MODES)
def outcomes(request: pytest.FixtureRequest, open_folder: Path, parts: Path) -> Iterator[dict[str, Outcome]]:
    """All attacks in one mode."""
    namespaces, uid = request.param
    if uid == 0 and os.geteuid() != 0:
        pytest.skip("the tests do not run as root")
    if namespaces == "required" and not NAMESPACES:
        pytest.skip(f"this machine gives no user namespaces: {probe()['namespaces']}")
    own = os.geteuid() if os.geteuid() != 0 else uid
    python = request.getfixturevalue("public_python") if own and os.geteuid() == 0 else sys.executable
    folder = Path(tempfile.mkdtemp(dir=open_folder))
    folder.chmod(0o755)
    world = World(folder, ATTACKS, own)
    snippets = [snippet(world, attack) for attack in ATTACKS]
    try:
        found = drive(python, parts, own, namespaces, snippets, [] if own else ["numpy", "sympy"])
        yield {
            attack.name: Outcome(
                world.escaped(attack, done[0]["output"]), done[0]["outcome"], done[0]["seconds"], done[-1]["output"].strip()
            )
            for attack, done in zip(ATTACKS, found["results"], strict=True)
        }
    finally:
        world.close()


def test_attacks_in_the_sandbox(outcomes: dict[str, Outcome], request: pytest.FixtureRequest) -> None:
    plain = "plain" in request.node.callspec.id
    assert len(outcomes) == len(ATTACKS) > 140
    assert {
        attack.name: outcomes[attack.name] for attack in ATTACKS if not held_off(attack, outcomes[attack.name], plain)
    } == {}


def held_off(attack: Attack, found: Outcome, plain: bool) -> bool:
    if found.escaped != (plain and attack.seen_without_namespaces) or found.outcome.startswith("ToolError"):
        return False
    if attack.goal == "ends":  # a fraction of a second of its own, where without the limit it would be for ever
        return found.outcome in (*attack.outcomes, "timeout") and found.seconds < 60
    return attack.goal != "poison" or found.after == CLEAN


@pytest.fixture(scope="module")
def control(open_folder: Path) -> Iterator[dict[str, bool]]:
    """The harmless attacks in a plain subprocess."""
    harmless = [attack for attack in ATTACKS if attack.harmless]
    folder = Path(tempfile.mkdtemp(dir=open_folder))
    world = World(folder, harmless, os.geteuid())

    def run(attack: Attack) -> str:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", world.code(attack)],
                cwd=scratch,
                env=ENVIRONMENT,
                capture_output=True,
                timeout=60,
            )
        return done.stdout.decode("utf-8", "replace")

    try:
        with ThreadPoolExecutor(4) as pool:
            outputs = list(pool.map(run, harmless))
        yield {attack.name: world.escaped(attack, output) for attack, output in zip(harmless, outputs, strict=True)}
    finally:
        world.close()


def test_without_a_sandbox_the_attacks_succeed(control: dict[str, bool]) -> None:
    assert [name for name, escaped in control.items() if not escaped] == [], "the test would not notice an escape"
    assert len(control) > 70
