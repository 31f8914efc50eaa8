"""Commands in fenced blocks of README and docs that no other test runs, as they stand, in a folder with the files of the page.

Only addresses and models that are not on this machine are replaced.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from local_service import local_service
from pages import REPOSITORY, commands
from run_folders import write_trial
from sums import Solver, write_sums
from typer.testing import CliRunner

from rapo_rllib.cli.main import app

Words = list[str]


def rllib(words: Words, *more: str) -> str:
    """What ``words`` say, in the present folder."""
    done = CliRunner().invoke(app, [*words[1:], *more])
    assert done.exit_code == 0, f"{' '.join(words)}\n{done.output}"
    return done.output


def reported(words: Words, folder: Path) -> None:
    """A run's folder where the page says that it is."""
    run = Path(words[2]).expanduser()
    for number in range(2):
        write_trial(run / f"trial_{number}", iterations=2, params={"retrieval_prob": number / 2}, questions=1)
    assert "2 trials" in rllib(words)
    assert (run / "report.html").stat().st_size > 10_000


def searched(words: Words, folder: Path) -> None:
    """The corpus of tools.md, which its commands fill one after the other."""
    (folder / "passages.jsonl").write_text('{"title": "Faust", "text": "A play by Goethe."}\n')
    row = {"question": "Who?", "paragraphs": [{"title": "Hamlet", "text": "A play by Shakespeare."}]}
    (folder / "questions.jsonl").write_text(json.dumps(row) + "\n")
    if words[2] in ("search", "stats") and not (folder / "corpus.db").exists():
        rllib(["rllib", "corpus", "build", "passages.jsonl"])
    told = {"build": "passages", "search": "A play by Goethe.", "stats": "passages"}
    assert told[words[2]] in rllib(words)


def compared(words: Words, folder: Path) -> None:
    """Three models that are all one endpoint, over sums."""
    sums = write_sums(folder, 2)
    (folder / "math500.jsonl").write_bytes(sums.read_bytes())
    first = words.index("evaluate") + 1
    with local_service(Solver()) as server:
        models = [f"{server.url}/v1#{name}" for name in ("a", "b", "c")]
        rest = [word.replace("gsm8k,", f"gsm8k={sums},") for word in words[first + 3 :]]
        rllib([*words[:first], *models, *rest], "--seed", "1")
    found = json.loads((folder / "results" / "results.json").read_text())["benchmarks"]
    assert {name: list(one["models"]) for name, one in found.items()} == {
        name: ["a", "b", "c"] for name in ("gsm8k", "math500")
    }
    assert found["gsm8k"]["models"]["a"]["samples"] == 4


def dry(words: Words, folder: Path) -> None:
    """What make would do."""
    done = subprocess.run([*words, "--dry-run"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted = {
        "train": "rllib train file tuned_examples/rapo_math.yaml",
        "test": "pytest",
        "check": "pytest --pure",
        "test-slow": "-m slow",
        "docs": "mkdocs build --strict",
        "setup": "Nothing to be done for|install --quiet",  # as the environment is there, or not
    }
    assert re.search(wanted[words[1]], done.stdout.replace('"', ""))


# first words of a command -> how it is run here
RUNS: dict[str, Callable[[Words, Path], None]] = {
    "make": dry,  # the whole of it: .ci/run, and e2e/test_main_job.py in a short form
    "rllib report": reported,
    "rllib corpus": searched,
    "rllib evaluate CHECKPOINT Qwen/Qwen2.5-3B-Instruct": compared,
}


def entry(words: Words) -> str:
    """The longest entry that the command begins with; empty: there is none."""
    line = " ".join(words)
    return max((start for start in RUNS if line.startswith(start)), key=len, default="")


HERE = [(page, words) for page, words in commands() if entry(words)]


def test_make_removes_the_same_packages() -> None:
    (removed,) = (words[2:] for _, words in commands() if words[:2] == ["pip", "uninstall"])
    (line,) = re.findall(r"PIP\) uninstall (.*)", (REPOSITORY / "Makefile").read_text(encoding="utf-8"))
    assert {word for word in removed if word[0] != "-"} == {word for word in line.split() if word[0] != "-"}


def test_no_entry_is_left_over() -> None:
    assert {*RUNS} - {entry(words) for _, words in commands()} == set()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One folder for each page, in which its commands follow each other."""
    return cache(lambda page: tmp_path_factory.mktemp(Path(page).stem))


@pytest.mark.parametrize(("page", "words"), HERE, ids=[f"{page}: {' '.join(words)}" for page, words in HERE])
def test_a_command_runs(page: str, words: Words, folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folders(page)
    monkeypatch.chdir(folder)
    if "~" in " ".join(words):  # not for all: models that were made ready once lie in the real one
        monkeypatch.setenv("HOME", str(folder))
    RUNS[entry(words)](words, folder)


@pytest.mark.slow  # 60 s of imports; in short: the options are declared (test_commands_in_the_docs.py)
@pytest.mark.parametrize("words", [words for _, words in commands() if words[0] == "python"], ids=lambda words: words[1])
def test_a_benchmark_starts_and_knows_its_options(words: Words) -> None:
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[\w-]+", _help_of(words[1])))


@cache
def _help_of(program: str) -> str:
    """Asked once of each: its imports take seconds."""
    done = subprocess.run([sys.executable, program, "--help"], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
