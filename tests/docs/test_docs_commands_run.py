"""Every command in a fenced block of README and docs is run here, or by the test that is named with the reason.

Run here: as they stand, in a folder with the files that the page speaks of; only addresses and models that are not on this
machine are replaced.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from local_service import local_service
from pages import REPOSITORY, commands, commands_in_sentences, is_a_test
from run_folders import write_trial
from sums import Solver, write_sums
from typer.main import get_command
from typer.testing import CliRunner

from rapo_rllib.cli.main import app

Words = list[str]
WHEEL = "package/test_wheel.py"
TRAINED = "e2e/test_examples_train.py"
CLUSTER = "docs/test_cluster.py::test_the_commands_make_a_cluster_train_on_it_and_end_it"


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

# first words of a command -> the test that runs it so, or in a short form; behind it why it is not run here
ELSEWHERE = {
    # installs packages; from a wheel, into an environment
    "pip install": f"{WHEEL}::test_the_installed_command_finds_the_examples",
    # removes packages; `make` does before any test
    "pip uninstall": "docs/test_docs_commands_run.py::test_make_removes_the_same_packages",
    "pip wheel": f"{WHEEL}::test_it_holds_every_file_of_the_package",  # from a copy, without the network
    "ray": CLUSTER,  # sees every Ray of this machine: in namespaces of its own
    "export RAY_AUTH_MODE": CLUSTER,  # for the commands below it
    "rllib train file job.yaml --ray-address": CLUSTER,  # joins a cluster that has to be made first
    # sets a variable for the command beside it
    "export AGENT_API_KEY": "agents/test_endpoint.py::test_what_an_endpoint_is_sent",
    "python benchmarks/main_job.py": "e2e/test_main_job.py::test_summary",  # half an hour; its job, shortened
    # an hour; its parts
    "python benchmarks/rollout.py": "benchmarks/test_rollout_parts.py::test_lockstep_and_our_schedule_do_the_same_work",
    "python benchmarks/retrieval.py": "benchmarks/test_retrieval_parts.py::test_all_sides_find_the_nearest",  # hours; its parts
    "rllib train file job.yaml --estimate": "cli/test_estimate.py::test_a_local_job",  # a job of its own
    # an hour; one of its jobs
    "python benchmarks/estimate.py": "benchmarks/test_estimate_measured.py::test_engine_and_learner_take_what_was_estimated",
    # minutes on an idle machine; a few step traces
    "python benchmarks/buffer_import.py": (
        "benchmarks/test_buffer_import_figures.py::test_an_import_is_measured_against_embedding_alone"
    ),
    # hours, and data sets; its sample
    "python benchmarks/search_recall.py": "benchmarks/test_search_recall.py::test_the_sample_follows_the_seed",
    # ten minutes; its parts before the first update
    "rllib train file tuned_examples/rapo_reasoning_gym.yaml": (
        "test_tuned_examples.py::test_the_reasoning_gym_job_fits_its_budgets"
    ),
    # the folder of a training; that of a small one
    "python benchmarks/paired_accuracy.py": (
        "benchmarks/test_paired_accuracy.py::test_a_trial_is_compared_from_its_first_to_its_last_evaluation"
    ),
    # minutes on an idle machine; the same sides with a scripted engine
    "python benchmarks/served_agents.py": "benchmarks/test_served_agents.py::test_every_side_has_the_same_conversations",
    "python benchmarks/gpu.py": "benchmarks/test_gpu_benchmark.py::test_passes_of_rows",  # a GPU; the same parts in tiny shapes
    # minutes on an idle machine; calls of what it measures
    "python benchmarks/sandbox.py": "sandbox/test_forkserver.py::test_a_hundred_calls_leave_nothing",
    # it writes into the pages; its parts
    "python benchmarks/learning.py": "benchmarks/test_learning_study.py::test_raw_results_become_figures_and_tables",
    # hours; what it keeps and reports
    "python benchmarks/packaged.py": "benchmarks/test_packaged.py::test_a_seed_that_is_there_is_not_run_again",
    # an hour; its parts
    "python benchmarks/against_trl.py": (
        "benchmarks/test_against_trl_parts.py::test_ratios_are_theirs_over_ours_by_their_geometric_mean"
    ),
    "python benchmarks/learner.py": "benchmarks/test_learner_parts.py::test_both_sides_take_the_same_step",
    # a model of 15 GB; a small one
    "rllib buffer build job.yaml --agent Qwen": (
        "e2e/test_buffer_build_engine.py::test_a_model_answers_with_the_tools_of_the_job"
    ),
    # a checkpoint in an engine
    "rllib buffer build job.yaml --agent ~": (
        "e2e/test_buffer_build_engine.py::test_a_checkpoint_answers_questions_that_are_only_seeds"
    ),
    # its own page of tests, with a local endpoint
    "rllib buffer build job.yaml --agent https": "cli/test_buffer_build.py::test_built_repeated_and_enlarged",
    "rllib buffer": "cli/test_buffer_docs.py::test_a_command_of_the_page",  # with the files of the page, as they stand
    # an engine of its own
    "rllib evaluate CHECKPOINT --benchmarks": "e2e/test_evaluate_engine.py::test_with_retrieval_every_attempt_is_shown_a_trace",
    # a server for people, not installed; what it reads
    "tensorboard": "cli/test_logged_job.py::test_tensorboard_has_the_nested_numbers_by_default",
    "rllib example list": "cli/test_example.py::test_every_example_is_listed_with_a_line_about_it",  # its own page of tests
    "rllib example get": "cli/test_example.py::test_get_writes_the_file_and_the_modules_that_it_needs",  # its own page of tests
    "rllib example run grpo_math": f"{TRAINED}::test_an_example_by_its_name",  # a training
    "rllib train file my_job.yaml": "e2e/test_main_job.py::test_summary",  # a training
    "rllib train file job.yaml --resume": "e2e/test_kill_and_resume.py::test_four_kills",  # a training, killed
    "rllib train file tuned_examples/rapo_treasure_hunt.yaml": "e2e/test_own_environment.py::test_the_text_game",  # a training
    "rllib train file tuned_examples/rapo_sweep.yaml": f"{TRAINED}::test_a_sweep",  # four trainings
    "rllib train file tuned_examples/rapo_asha.yaml": f"{TRAINED}::test_a_sweep",  # eight trainings
    "rllib train file tuned_examples/rapo_pbt.yaml": f"{TRAINED}::test_a_sweep",  # four trainings
}


def entry(words: Words) -> str | None:
    """The longest entry that the command begins with."""
    line = " ".join(words)
    return max((start for start in (*RUNS, *ELSEWHERE) if line.startswith(start)), key=len, default=None)


HERE = [(page, words) for page, words in commands() if entry(words) in RUNS]


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda value: value if isinstance(value, str) else " ".join(value))
def test_a_command_is_run_here_or_by_the_test_that_is_named(page: str, words: Words) -> None:
    found = entry(words)
    assert found is not None, f"{page}: {' '.join(words)}: run it in RUNS, or name why not, and its test, in ELSEWHERE"
    if found in ELSEWHERE:
        assert is_a_test(ELSEWHERE[found])


def test_make_removes_the_same_packages() -> None:
    (removed,) = (words[2:] for _, words in commands() if words[:2] == ["pip", "uninstall"])
    (line,) = re.findall(r"PIP\) uninstall (.*)", (REPOSITORY / "Makefile").read_text(encoding="utf-8"))
    assert {word for word in removed if word[0] != "-"} == {word for word in line.split() if word[0] != "-"}


def test_no_entry_is_left_over() -> None:
    assert {*RUNS, *ELSEWHERE} - {entry(words) for _, words in commands()} == set()


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
    RUNS[entry(words) or ""](words, folder)


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


@cache
def _command() -> Any:
    """Made of the app once: Typer reads the signatures of all commands."""
    return get_command(app)


def _leaf(words: Words) -> tuple[str, ...]:
    """The commands that come first in ``words``: ``rllib buffer stats --json`` is (buffer, stats)."""
    command, path = _command(), []
    for word in words[1:]:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
        path.append(word)
    return tuple(path)


@pytest.mark.parametrize(
    "path", sorted({_leaf(words) for _, words in commands_in_sentences()}), ids=lambda path: " ".join(path) or "rllib"
)
def test_what_is_named_in_sentences_says_how_it_is_used(path: tuple[str, ...]) -> None:
    assert "Usage: " in rllib(["rllib", *path, "--help"])
