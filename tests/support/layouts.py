"""Ways in which this package can be installed, and code that looks for its questions and the job's files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

SECRET = "gold-answer-7f31"  # no output has it by chance
PACKAGE = Path(__file__).resolve().parents[2] / "rapo_rllib"
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = ("numpy", "sympy", "mpmath")
NOT_CODES = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "tkinter", "config-*", "ensurepip")
UNNEEDED = shutil.ignore_patterns(*NOT_CODES, "*.opt-?.pyc")  # of the standard library, where it is copied


class Layout(NamedTuple):
    """An interpreter, where it finds packages, where ours is, and what else the job has."""

    python: str
    folder: Path  # of packages, or of our sources
    prefix: Path
    job: Path


def wheel(prefix: Path, python: str = sys.executable, packages: Path | None = None) -> Layout:
    """As pip installs us: beside the packages that code may import, with data and a script in the prefix.

    Packages are links; a small one lies here itself, or in ``packages``.
    """
    folder = prefix / "lib" / VERSION / "site-packages"
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        files = metadata.files(package) or []
        for name in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            there = Path(str(metadata.distribution(package).locate_file(name)))
            if package == "mpmath":
                there = Path(shutil.copytree(there, (packages or folder) / name))
            if there != folder / name:
                (folder / name).symlink_to(there)
    _ours(folder)
    info = folder / "rapo_rllib-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rapo_rllib\nVersion: 0.1.0\n")
    (info / "RECORD").write_text(f"{SECRET},,\nrapo_rllib/__init__.py,,\n")
    (info / "direct_url.json").write_text(json.dumps({"url": SECRET}))
    (folder / "data_set").mkdir()
    (folder / "data_set" / "__init__.py").write_text(f"ANSWER = {SECRET!r}\n")
    (folder / "loose.py").write_text(f"ANSWER = {SECRET!r}\n")
    (folder / "extra.pth").write_text(f"# {SECRET}\n")
    for place in ("share/rapo_rllib/tuned_examples", "bin"):
        (prefix / place).mkdir(parents=True, exist_ok=True)
        (prefix / place / "rllib").write_text(SECRET)
    return Layout(python, folder, prefix, _job(prefix))


def without_environment(prefix: Path) -> Layout:
    """The same where the folder of packages lies in the standard library's, as without a virtual environment.

    A package is a link to what sorts before that folder.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(stdlib, prefix / "lib" / stdlib.name, ignore=UNNEEDED, symlinks=True)
    (prefix / "lib" / stdlib.name / "stray.py").write_text(f"ANSWER = {SECRET!r}\n")
    (prefix / "bin").mkdir()
    real = os.path.realpath(sys.executable)
    return wheel(prefix, str(shutil.copy(real, prefix / "bin" / Path(real).name)), prefix.parent / "before")


def editable(prefix: Path) -> Layout:
    """Our sources, as a checkout that is on ``sys.path``."""
    checkout = prefix / "checkout"
    checkout.mkdir(parents=True)
    _ours(checkout)
    return Layout(sys.executable, checkout, prefix, _job(prefix))


LAYOUTS = {"wheel": wheel, "without an environment": without_environment, "editable": editable}


def _ours(folder: Path) -> None:
    shutil.copytree(PACKAGE, folder / "rapo_rllib", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "rapo_rllib" / "__init__.py").write_text("")  # the real one imports Ray
    (folder / "rapo_rllib" / "golds.py").write_text(f"ANSWER = {SECRET!r}\n")
    (folder / "rapo_rllib" / "__pycache__").mkdir()
    (folder / "rapo_rllib" / "__pycache__" / "golds.pyc").write_text(SECRET)
    with zipfile.ZipFile(folder / "zipped.zip", "w") as archive:
        archive.writestr("zipped_golds.py", f"ANSWER = {SECRET!r}\n")


def _job(prefix: Path) -> Path:
    """What a running job has: a working folder, results, a buffer, caches."""
    job = prefix / "home"
    for name in ("work", "ray_results/trial", ".cache/huggingface/datasets", "buffer.db", "shared/data"):
        (job / name).mkdir(parents=True)
        (job / name / "questions.jsonl").write_text(SECRET)
    return job


# FOLDER, PREFIX, JOB are told
ATTACK = f"""
import importlib, importlib.metadata, os, sys  # before a folder with a types.py of its own is on the path
names = ["rapo_rllib", "rapo_rllib.golds", "rapo_rllib.envs.word_problems.env", "data_set", "loose", "zipped_golds", "stray"]
files = ["rapo_rllib/" + name for name in ("golds.py", "envs/word_problems/env.py", "__pycache__/golds.pyc")]
files += ["rapo_rllib-0.1.0.dist-info/" + name for name in ("RECORD", "direct_url.json")]
files = [os.path.join(FOLDER, file) for file in [*files, "data_set/__init__.py", "extra.pth", "zipped.zip", "loose.py"]]
more = ["share/rapo_rllib/tuned_examples/rllib", "bin/rllib", "lib/{VERSION}/stray.py"]
files += [os.path.join(PREFIX, file) for file in more]
files += [os.path.join(JOB, name, "questions.jsonl") for name in ("work", "ray_results/trial", "buffer.db", "shared/data")]
files += [os.path.join(JOB, ".cache/huggingface/datasets/questions.jsonl")]
found = []
for file in files:
    try:
        found.append(("read", file, open(file, "rb").read()[:40]))
    except OSError:
        pass
paths = [FOLDER, os.path.join(FOLDER, "rapo_rllib"), os.path.join(FOLDER, "zipped.zip"), PREFIX + "/lib/{VERSION}"]
for further in ([], paths):
    sys.path[:0] = further
    importlib.invalidate_caches()
    for name in names:
        try:
            found.append(("import", name, getattr(importlib.import_module(name), "ANSWER", "")))
        except (ImportError, OSError):
            pass
from importlib import metadata
for path in (None, [FOLDER]):
    every = metadata.distributions() if path is None else metadata.distributions(path=path)
    found += [("distribution", each.name) for each in every if each.name not in {PACKAGES!r}]
for top in [*sys.path, "/", FOLDER, PREFIX, JOB, os.path.dirname(os.__file__), "/proc", "/tmp", "/root", "/home", ".."]:
    for here, folders, names in os.walk(top):
        found += [("listed", here, name) for name in folders + names if name.startswith("rapo") or name == "questions.jsonl"]
        if here == "/" or here.count("/") > 12:
            folders.clear()
found += [("module", name) for name in sys.modules if name.startswith("rapo")]
for fd in range(5, 999):
    try:
        found.append(("descriptor", fd, os.fstat(fd)))
    except OSError:
        pass
held = [sys.argv, sys.orig_argv, dict(os.environ)]
for name in ("environ", "cmdline", "maps", "fd"):
    try:
        held.append(open("/proc/self/" + name).read())
    except OSError:
        pass
found += [("held", text) for text in map(str, held) if FOLDER in text or {SECRET!r} in text]
print(found if found else "NOTHING FOUND")
"""

DRIVER = """
import json, os, sys
told = json.load(sys.stdin)
sys.path[:0] = told["path"]
os.environ["GOLD"] = told["secret"]
import rapo_rllib
assert rapo_rllib.__file__.startswith(told["path"][0]), rapo_rllib.__file__
from rapo_rllib.sandbox import SandboxLimits, shared_sandbox
done = {}
for name, settings in told["settings"].items():
    sandbox = shared_sandbox(settings["namespaces"], False, settings["preload"])
    results = [sandbox.run(code, SandboxLimits(timeout_s=120, max_output_bytes=100_000)) for code in told["codes"]]
    done[name] = [result.output.decode() for result in results]
print(json.dumps(done))
"""


def drive(layout: Layout, codes: list[str], settings: dict[str, dict[str, object]]) -> dict[str, list[str]]:
    """What codes print in the sandboxes that a program of this layout makes, in the job's working folder."""
    told = f"FOLDER, PREFIX, JOB = {str(layout.folder)!r}, {str(layout.prefix)!r}, {str(layout.job)!r}\n"
    others = [path for path in sys.path if path.endswith("site-packages")] if layout.folder.name == "checkout" else []
    order = {
        "path": [str(layout.folder), *others],
        "secret": SECRET,
        "settings": settings,
        "codes": [told + code for code in codes],
    }
    done = subprocess.run(
        [layout.python, "-S", "-c", DRIVER],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        cwd=layout.job / "work",
        env={"HOME": str(layout.job), "HF_HOME": str(layout.job / ".cache" / "huggingface"), "PATH": os.environ["PATH"]},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
