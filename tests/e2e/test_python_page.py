"""The program of docs/jobs.md, as it stands there; only its sizes are smaller. README's is a part of it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from jobs import REPOSITORY
from pages import blocks

pytestmark = pytest.mark.e2e

SMALL = (
    "questions_per_step=2, max_prompt_tokens=1024, max_response_tokens=16, learner_num_threads=1, "
    "engine={'dtype': 'float32', 'enforce_eager': True, 'max_num_seqs': 16, 'kv_cache_gib': 0.2}"
)
AFTER = "\nprint('restored:', algo.iteration)\nalgo.stop()\n"


def test_the_program_of_the_python_page_trains(
    tmp_path: Path, small_model: str, ray_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = blocks(REPOSITORY / "docs" / "jobs.md", "python")
    smaller = {
        "smollm2-135m-instruct": small_model,
        "lr=1e-5": f"lr=1e-5, {SMALL}",
        '"steps": [1, 2]': '"steps": [1, 2], "num_train": 100',
        '"./my_job.db"': '"./my_job.db", "max_traces": 20',
        "range(20)": "range(1)",
        "evaluation_interval=5, evaluation_duration=128": "evaluation_interval=1, evaluation_duration=4",
    }
    for said, here in smaller.items():
        assert program.count(said) == 1, said
        program = program.replace(said, here)
    (tmp_path / "program.py").write_text(program + AFTER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said: list[tuple[Any, ...]] = []
    runpy.run_path("program.py", init_globals={"print": lambda *values: said.append(values)})
    (accuracy,) = (values[1] for values in said if values[0] == "held-out accuracy:")
    assert 0 <= accuracy <= 1
    assert ("restored:", 1) in said
    assert (tmp_path / "policy" / "config.json").is_file()
