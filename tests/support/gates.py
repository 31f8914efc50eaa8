"""``pytest --gates``: the tests that a change of the house must leave as they are. None of them is loosened for a change.

A gate is a list of files under ``tests/`` (docs of each: ``tests/gates.md``). ``make gates`` runs what is quick of them,
``make test-slow`` what is long.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest
from places import TESTS

GATES = {
    "objective": (
        *("batching/test_reference.py", "batching/test_training_batch.py", "batching/test_credit.py", "config/test_presets.py"),
        *("objective/test_*.py", "learner/test_learner.py", "learner/test_learners_together.py"),
    ),
    "provenance": (
        "learner/test_learner.py",
        "rollout/test_ends.py",
        "rollout/test_native_rollout.py",
        "rollout/test_stream.py",
    ),
    "resume": (
        *(
            "learner/test_training_state.py",
            "e2e/test_kill_and_resume.py",
            "e2e/test_credit_job.py",
            "e2e/test_restored_run.py",
        ),
        *("cli/test_resume_command.py", "e2e/test_streamed_run.py"),
    ),
    "ratios": ("benchmarks/test_shortest_forms.py", "e2e/test_main_job.py"),
    "attacks": ("sandbox/test_*.py", "rewards/test_*.py"),
    "weights": ("weights/test_*.py", "e2e/test_weights_reach_the_engine.py"),
    "rows": ("milvus/test_kill_lite.py", "buffer/test_store.py", "buffer/test_flipped_bytes.py", "buffer/test_growth.py"),
    "house": ("test_layers.py", "test_budgets.py"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gates", action="store_true", help="only the tests that no change of the house may loosen")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what no gate names."""
    if not config.getoption("gates") or not fnmatch.fnmatch(collection_path.name, "test_*.py"):
        return None
    name = collection_path.relative_to(TESTS).as_posix()
    return None if any(fnmatch.fnmatch(name, pattern) for files in GATES.values() for pattern in files) else True
