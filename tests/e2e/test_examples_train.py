"""Files of ``tuned_examples/`` as the docs train them, by the options of the command line: a small model, small numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import rllib
from jobs import TUNED_EXAMPLES, Trial, at, trials

pytestmark = pytest.mark.e2e

SMALL: dict[str, Any] = {
    "model.gradient_checkpointing": False,
    "engine.max_num_seqs": 8,
    "engine.kv_cache_gib": 0.2,
    "questions_per_step": 2,
    "group_size": 4,
    "max_response_tokens": 24,
    "max_step_tokens": 8,
    "evaluation_interval": 1,
    "evaluation_duration": 2,
    "evaluate_before_training": False,
    "learner_num_threads": 1,
    "num_cpus_for_main_process": 1,
}
RETRIEVING = {"num_hybrid": 2, "step_trace_buffer.max_traces": 20}
TWO = ("--num-samples", "2")
SWEEPS: dict[str, tuple[str, ...]] = {
    "rapo_sweep.yaml": ("--set", "retrieval_prob={grid_search: [0.0, 1.0]}"),
    "rapo_asha.yaml": (*TWO, "--scheduler-config", '{"grace_period": 1, "max_t": 1}'),
    "rapo_pbt.yaml": (*TWO, "--scheduler-config", '{"perturbation_interval": 1}'),
}


def trained(folder: Path, model: str, *arguments: str, **config: Any) -> list[Trial]:
    """The trials of ``rllib ARGUMENTS`` after one iteration, two at a time."""
    changes = {"model.name_or_path": model, **SMALL, **config}
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    stop = ("--stop", '{"training_iteration": 1}', "--ray-num-cpus", "2", "--no-checkpoint-at-end")
    done = rllib(folder, *arguments, *stop, *sets, timeout_s=500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return trials(folder)


@pytest.mark.slow  # 55 s each, two whole trials; in short: test_tune.py
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep(tmp_path: Path, small_model: str, name: str) -> None:
    path = str(TUNED_EXAMPLES / name)
    found = trained(tmp_path, small_model, "train", "file", path, *SWEEPS[name], **RETRIEVING)
    results = [result for trial in found for result in trial.results]
    assert [result["training_iteration"] for result in results] == [1, 1]
    chances = {at(result, "config/retrieval_prob") for result in results}
    assert chances == {0.0, 1.0} if name == "rapo_sweep.yaml" else len(chances) == 2
    assert all(0 <= at(result, "evaluation/env_runners/accuracy") <= 1 for result in results)


def test_an_example_by_its_name(tmp_path: Path, small_model: str) -> None:
    (trial,) = trained(tmp_path, small_model, "example", "run", "grpo_math", "--storage-path", "results")
    assert at(trial.results[0], "env_runners/num_episodes") == 8


def test_the_pipeline(tmp_path: Path, small_model: str) -> None:
    path = str(TUNED_EXAMPLES / "rapo_pipeline.py")
    (trial,) = trained(tmp_path, small_model, "train", "file", path, **RETRIEVING)
    (result,) = trial.results
    assert at(result, "env_runners/num_episodes") == 8
    assert result["unit_calls"] >= 0
    evaluated = at(result, "evaluation/env_runners")
    assert evaluated["error_rate"] == pytest.approx(1 - evaluated["accuracy"])
