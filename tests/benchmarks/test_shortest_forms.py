"""Every benchmark runs to its end, as a command, in its shortest form. Only that it runs is asked, and that it has figures."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import short_job
from pages import REPOSITORY
from run_folders import write_trial

FORMS = {  # DATA and JSON are replaced; other files are in the folder of the test; a name's second word is for another form
    "against_trl": "--short --seeds 0-0 --side both --accuracy 1 --json-dir raw --json JSON",
    "buffer_import": "--data DATA/traces/gsm8k_train_human_calc.jsonl.gz --traces 100 --json JSON",
    "gpu": "--small --json JSON",
    "learner": "--short --json JSON",
    "learner alone": "--trees --roofline --tiny --json JSON",
    "main_job": "--job job.yaml --json JSON",
    "recovery": "--only comes_back --json JSON",
    "retrieval": "--data DATA --cache cache --sizes 300 --processes 1 --real 300 --json JSON",
    "rollout": "--quick --traces 300 --json JSON",
    "sandbox": "--quick --json JSON",
    "schedule": "transcripts --updates 2 --engines 2 --json JSON",
    "served_agents": "--quick --json JSON",
    "search_recall": "--data DATA --quick --json JSON",
    "staleness": "--iterations 1 --warm-up 1 --questions 2 --group-size 2 --slow-s 0.5 --json JSON",
    "weight_sync": "--rounds 1 --json JSON",
}
ELSEWHERE = {  # what a command needs takes longer than it: what runs it so, or in a short form
    "estimate": "test_estimate_measured.py::test_engine_and_learner_take_what_was_estimated",
    "paired_accuracy": "test_paired_accuracy.py::test_a_trial_is_compared_from_its_first_to_its_last_evaluation",
    "learning": "test_learning_study.py",
    "packaged": "test_packaged.py::test_a_seed_that_is_there_is_not_run_again",
}


def numbers(found: Any) -> Iterator[float]:
    """All numbers of a JSON."""
    if isinstance(found, dict | list):
        for inner in found.values() if isinstance(found, dict) else found:
            yield from numbers(inner)
    elif isinstance(found, int | float) and not isinstance(found, bool):
        yield found


def test_there_is_a_form_of_each() -> None:
    names = {form.split()[0] for form in FORMS}
    assert {file.stem for file in (REPOSITORY / "benchmarks").glob("*.py")} == {*names, *ELSEWHERE}
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert name in (REPOSITORY / "tests" / "benchmarks" / file).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FORMS)
def test_it_runs(name: str, tmp_path: Path, shared_data: Path) -> None:
    if name == "main_job":
        short_job(tmp_path, iterations=1)
    if name == "schedule":
        write_trial(tmp_path / "trial", iterations=2)
    words = {"DATA": str(shared_data), "JSON": str(tmp_path / "figures.json")}
    arguments = [word.replace("DATA", words["DATA"]).replace("JSON", words["JSON"]) for word in FORMS[name].split()]
    if name == "schedule":
        arguments[:1] = map(str, sorted(tmp_path.glob("trial/transcripts/*.jsonl")))
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(REPOSITORY / "benchmarks" / f"{name.split()[0]}.py"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    figures = list(numbers(json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))))
    assert figures and all(map(math.isfinite, figures))
