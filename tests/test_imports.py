"""Light imports stay light: what nobody has used yet is not loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
HEAVY = ("vllm", "pymilvus", "transformers", "sentence_transformers")


def run_python(code: str) -> str:
    """Standard output of ``code`` in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_after(statements: str, packages: tuple[str, ...]) -> list[str]:
    """Which of ``packages`` are loaded once ``statements`` have run."""
    code = f"{statements}\nimport sys\nprint('loaded:', *[p for p in {packages!r} if sys.modules.get(p)])"
    return run_python(code).splitlines()[-1].split()[1:]


def test_loaded_packages_are_seen() -> None:
    assert loaded_after("import json, pathlib", ("json", "vllm")) == ["json"]


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import rapo_rllib", HEAVY) == []


def test_objective_needs_no_ray() -> None:
    # None in sys.modules makes every `import ray` raise ImportError.
    statements = "import sys\nsys.modules['ray'] = None\nimport rapo_rllib.objective"
    assert loaded_after(statements, (*HEAVY, "ray")) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "file", "--help"],
        ["corpus", "--help"],
        ["corpus", "build", "--help"],
        ["buffer", "import", "--help"],
        ["report", "--help"],
    ],
)
def test_help_of_the_command_loads_nothing_heavy(arguments: list[str]) -> None:
    statements = f"""
import sys
from rapo_rllib.cli.main import main
sys.argv = ["rllib", *{arguments!r}]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert loaded_after(statements, (*HEAVY, "ray", "torch")) == []
