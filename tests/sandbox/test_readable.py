"""What code can read, however this package is installed: what it may import, and nothing of ours or of the job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from layouts import ATTACK, LAYOUTS, SECRET, Layout, drive

from rapo_rllib.sandbox.files import visible_files
from rapo_rllib.sandbox.machine import probe
from rapo_rllib.tools.python import PythonTool

NAMESPACES = probe()["namespaces"] is None
SETTINGS: dict[str, dict[str, object]] = {"plain": {"namespaces": "off", "preload": ["sympy"]}}
if NAMESPACES:
    SETTINGS["namespaces"] = {"namespaces": "required", "preload": ["sympy"]}
IMPORTS = """
import mpmath, sympy, statistics, sqlite3, importlib.metadata
print(sympy.__version__ == importlib.metadata.version("sympy"), sympy.solve(sympy.Symbol("x") - 6), statistics.mean([1, 3]))
"""


# where Debian installs, our package lies in the folder of the standard library: the hardest to keep apart
TRIED = [pytest.param(name, marks=pytest.mark.slow if name == "wheel" else []) for name in LAYOUTS]


@pytest.fixture(scope="module", params=TRIED)
def layout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return LAYOUTS[request.param](tmp_path_factory.mktemp("prefix") / "prefix")


@pytest.fixture(scope="module")
def printed(layout: Layout) -> dict[str, list[str]]:
    """Of each backend; one program for all."""
    return drive(layout, [ATTACK, IMPORTS], SETTINGS)


@pytest.mark.parametrize("backend", SETTINGS)
def test_code_finds_nothing_of_ours_or_of_the_job(printed: dict[str, list[str]], backend: str) -> None:
    assert printed[backend][0] == "NOTHING FOUND\n"


@pytest.mark.parametrize("backend", SETTINGS)
def test_code_imports_what_it_may(printed: dict[str, list[str]], backend: str) -> None:
    assert printed[backend][1] == "True [6] 2\n"


def test_the_attack_finds_it_all_without_a_sandbox(layout: Layout) -> None:
    told = f"FOLDER, PREFIX, JOB = {str(layout.folder)!r}, {str(layout.prefix)!r}, {str(layout.job)!r}\n"
    small = ATTACK.replace('"/", ', "").replace('"/proc", "/tmp", "/root", "/home", ', "")
    done = subprocess.run(
        [layout.python, "-S", "-c", told + small], capture_output=True, text=True, timeout=120, cwd=layout.job
    )
    assert all(f"('{kind}', " in done.stdout for kind in ("read", "import", "listed")), done.stdout + done.stderr
    assert done.stdout.count(SECRET) >= 10


def readable_modules(*preload: str) -> set[str]:
    return set(visible_files(preload).modules)


def install(folder: Path, name: str, files: dict[str, str], requires: str = "") -> None:
    """A distribution, with its list of files."""
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
    for file, text in {**files, f"{info}/METADATA": head}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    (folder / info / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, f"{info}/METADATA", "../../bin/x"]))


def test_a_distribution_brings_its_own_files_and_what_it_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    needs = "Requires-Dist: Needed.Too (>=1)\nRequires-Dist: extra-only; extra == 'x'\nRequires-Dist: not-here\n"
    install(first, "some-dist", {"some_module.py": "", "shared/mine/__init__.py": "", "shared/mine/deep/x.py": ""}, needs)
    install(second, "needed_too", {"needed/__init__.py": "", "needed.libs/lib.so": ""})
    install(second, "extra-only", {"extra_only.py": ""})
    install(first, "other", {"shared/other/__init__.py": SECRET, "other.py": SECRET})
    for folder in (first, second):
        monkeypatch.syspath_prepend(str(folder))
    standard = readable_modules()
    ours = {"some_module.py", "shared/mine", "needed", "needed.libs", "some_dist-1.0.dist-info", "needed_too-1.0.dist-info"}
    assert readable_modules("some_module") - standard == ours  # a distribution with another name
    files = visible_files(["some_module"])
    assert str(first / "shared" / "mine") in files.readable
    assert not {str(first), str(first / "shared"), str(second), str(tmp_path)} & set(files.readable)


def test_a_module_that_no_distribution_lists_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, installed = tmp_path / "src", tmp_path / "site-packages"
    (sources / "edited").mkdir(parents=True)
    (sources / "edited" / "__init__.py").touch()
    (sources / "mine.py").touch()
    install(installed, "edited", {"__editable___edited_finder.py": "", "__editable__.edited.pth": ""})
    for folder in (sources, installed):
        monkeypatch.syspath_prepend(str(folder))
    files = visible_files(["mine", "edited"])
    assert {files.modules["mine.py"], files.modules["edited"]} == {str(sources / "mine.py"), str(sources / "edited")}


@pytest.mark.parametrize("name", ["rapo_rllib.envs", "rapo_rllib", "plugin"])
def test_our_own_package_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "plugin", {"plugin.py": ""}, "Requires-Dist: rapo_rllib\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"python option preload: 'rapo_rllib' .* would let code read rapo_rllib"):
        PythonTool(preload=[name])


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_a_named_package_can_be_imported(namespaces: str) -> None:
    code = "import yaml\nyaml.safe_load('[1, 2]')"
    assert PythonTool(preload=["yaml"], namespaces=namespaces).run(code).text == "[1, 2]"
    assert (
        PythonTool(preload=[], namespaces=namespaces).run("import yaml").text == "ModuleNotFoundError: No module named 'yaml'"
    )


def test_nothing_of_the_machine_is_in_the_list() -> None:
    readable = visible_files(["numpy", "sympy"]).readable
    assert not any(path.endswith(("site-packages", "dist-packages", "/lib", sys.prefix)) for path in readable)
    assert not any("rapo" in Path(path).name for path in readable)
