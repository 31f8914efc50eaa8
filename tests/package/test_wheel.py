"""The wheel: it builds, and everything that the repository has of the package is in it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from syntax import tree_of

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = (".py", ".pyi", ".typed", ".yaml", ".json", ".css", ".js", ".html")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, without the network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("rapo_rllib", "tuned_examples"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    # README's command; isolated, it would fetch setuptools
    options = ["--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(out), ".", *options]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(out / f"rapo_rllib-{PROJECT['version']}-py3-none-any.whl")


def test_it_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    package = REPOSITORY / "rapo_rllib"
    files = {path.relative_to(REPOSITORY).as_posix() for path in package.rglob("*") if path.suffix in SOURCES}
    held = {name for name in wheel.namelist() if name.startswith("rapo_rllib/")}
    assert len(files) > 200
    assert files - held == set()
    assert {name for name in held if not name.endswith(SOURCES)} == set()


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``rllib`` of a virtual environment in which the wheel was installed, and that has all other packages of this one."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    python = folder / "bin" / "python"
    (target,) = folder.glob("lib/python*/site-packages")
    (target / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    # pip sees the package of this environment there as well, and would leave it at that
    options = ["--ignore-installed", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel.filename)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "rllib"


def rllib(program: Path, *arguments: str) -> str:
    """What the installed command says, far from the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [program, *arguments], cwd=program.parent, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_command_finds_the_examples(installed: Path, tmp_path: Path) -> None:
    listed = [line.split()[0] for line in rllib(installed, "example", "list").splitlines()]
    assert listed == sorted({path.stem for path in (REPOSITORY / "tuned_examples").glob("*.yaml")} | {"rapo_pipeline"})
    text = (REPOSITORY / "tuned_examples" / "rapo_math.yaml").read_text(encoding="utf-8")
    assert rllib(installed, "example", "get", "rapo_math") == text
    written = rllib(installed, "example", "get", "rapo_treasure_hunt", "--to", str(tmp_path)).split()
    assert [Path(file).name for file in written] == ["rapo_treasure_hunt.yaml", "treasure_hunt.py"]
    code = "from rapo_rllib.cli import example; print(example.__file__, example.examples_folder())"
    places = rllib(installed.parent / "python", "-c", code).split()
    assert all(place.startswith(str(installed.parents[1])) for place in places), places


ATTACK = """
import os, sys
found = []
for path in [None, *PATHS]:
    sys.path[:0] = [path] if path else []
    try:
        from rapo_rllib.envs.word_problems.env import env as word_problems
        found.append("imported")
    except ImportError:
        pass
    for name in ("rapo_rllib/envs/word_problems/env.py", "rapo_rllib-VERSION.dist-info/RECORD", "others.pth"):
        try:
            found.append(open(os.path.join(path or ".", name)).read()[:20])
        except OSError:
            pass
print(found, [name for path in sys.path for _, *names in os.walk(path) for name in sum(names, []) if name.startswith("rapo")])
"""
CALLS = """
import sys
from rapo_rllib.tools.python import PythonTool
for options in ({"namespaces": "auto"}, {"namespaces": "off"}):
    tool = PythonTool(timeout_s=60, **options)
    print(tool.run(sys.argv[1]).text, tool.run("import sympy; sympy.sqrt(16)").text)
"""


@pytest.mark.slow
def test_code_in_the_sandbox_does_not_see_it(installed: Path) -> None:
    (packages,) = installed.parents[1].glob("lib/python*/site-packages")
    paths = [str(packages), *site.getsitepackages(), str(REPOSITORY)]
    attack = f"PATHS = {paths!r}\n{ATTACK.replace('VERSION', PROJECT['version'])}"
    arguments = ["-c", CALLS, attack]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [installed.parent / "python", *arguments], cwd=packages, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[] [] 4"] * len(done.stdout.splitlines()), done.stdout
    assert len(done.stdout.splitlines()) == 2


def test_it_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "rapo_rllib/py.typed" in names
    info = f"rapo_rllib-{PROJECT['version']}.dist-info"
    assert f"{info}/licenses/LICENSE" in names
    assert wheel.read(f"{info}/entry_points.txt").decode().split() == [
        "[console_scripts]",
        "rllib",
        "=",
        "rapo_rllib.cli.main:main",
    ]
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert f"Requires-Python: {','.join(reversed(PROJECT['requires-python'].split(',')))}" in metadata


def imported_packages(code: bytes) -> set[str]:
    """Top-level names that a module imports absolutely, in functions as well."""
    nodes = list(ast.walk(tree_of(code)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level and node.module]
    return {name.split(".")[0] for name in names}


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_it_requires_what_its_modules_import(wheel: zipfile.ZipFile) -> None:
    metadata = wheel.read(f"rapo_rllib-{PROJECT['version']}.dist-info/METADATA").decode()
    required = {canonical(name) for name in re.findall(r"^Requires-Dist: ([\w.-]+)(?!.*extra ==)", metadata, re.MULTILINE)}
    modules = [name for name in wheel.namelist() if name.startswith("rapo_rllib/") and name.endswith(".py")]
    imported = set().union(*(imported_packages(wheel.read(name)) for name in modules))
    distributions = packages_distributions()
    foreign = imported - set(sys.stdlib_module_names) - {"rapo_rllib"}
    carriers = {name: {canonical(each) for each in distributions.get(name, [name])} for name in foreign}
    assert {"torch", "ray", "yaml"} <= foreign
    # what extras bring: an engine for CPUs or GPUs with its server, a tool's cache, MCP, games
    extras = {"vllm", "starlette", "uvicorn", "diskcache", "mcp", "httpx2", "pydantic", "gem", "omegaconf", "websockets"}
    assert {name for name, found in carriers.items() if not found & required} == extras


def test_citation_and_changelog_name_the_version() -> None:
    import yaml

    citation = yaml.safe_load((REPOSITORY / "docs" / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert f"## {PROJECT['version']}" in (REPOSITORY / "docs" / "changelog.md").read_text(encoding="utf-8")
