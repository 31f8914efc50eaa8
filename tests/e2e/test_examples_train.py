"""Files of ``tuned_examples/`` as the docs train them, by the options of the command line: a small model, small numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import rllib
from jobs import TUNED_EXAMPLES, Trial, at, trained_here, trials
from small_model import save_speaking_model

pytestmark = pytest.mark.e2e

SMALL: dict[str, Any] = {
    "warm_start": None,
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
CONVERTING = {"max_response_tokens": 96, "max_step_tokens": 16, "num_hybrid": 2, "step_trace_buffer.max_traces": 20}
RETRIEVING = {"num_hybrid": 2, "step_trace_buffer.max_traces": 20}
TWO = ("--num-samples", "2")
SWEEPS: dict[str, tuple[str, ...]] = {
    "rapo_sweep.yaml": ("--set", "retrieval_prob={grid_search: [0.0, 1.0]}"),
    "rapo_asha.yaml": (*TWO, "--set", "scheduler={grace_period: 1, max_t: 1}"),
    "rapo_pbt.yaml": (*TWO, "--set", "scheduler.perturbation_interval=1"),
}


def options(model: str, **config: Any) -> list[str]:
    """What makes a training small, on a command line."""
    changes = {"model.name_or_path": model, **SMALL, **config}
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    return ["--stop", '{"training_iteration": 1}', *sets]


def trained(folder: Path, model: str, *arguments: str, **config: Any) -> list[Trial]:
    """The trials of ``rllib ARGUMENTS`` after one iteration, two at a time."""
    more = ("--ray-num-cpus", "2", "--set", "checkpoint_config.checkpoint_at_end=false")
    done = rllib(folder, *arguments, *more, *options(model, **config), timeout_s=500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return trials(folder)


# 55 s each, two whole trials. In short no trial of these files starts: they are read in tests/test_tuned_examples.py; a grid's
# trials without Tune are in test_population.py, with an exploit, and ASHA with toys in tests/cli/test_train_file.py
@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep(tmp_path: Path, small_model: str, name: str) -> None:
    path = str(TUNED_EXAMPLES / name)
    found = trained(tmp_path, small_model, "train", "file", path, *SWEEPS[name], **RETRIEVING)
    results = [result for trial in found for result in trial.results]
    assert [result["training_iteration"] for result in results] == [1, 1]
    chances = {at(result, "config/retrieval_prob") for result in results}
    assert chances == {0.0, 1.0} if name == "rapo_sweep.yaml" else len(chances) == 2
    assert all(0 <= at(result, "evaluation/env_runners/accuracy") <= 1 for result in results)


@pytest.mark.slow  # 15 s; in short: tests/cli/test_example.py, and the pipeline below
def test_an_example_by_its_name(tmp_path: Path, small_model: str, ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trial = trained_here(monkeypatch, "example", "run", "grpo_math", *options(small_model))
    assert at(trial.results[0], "env_runners/num_episodes") == 8


@pytest.fixture(scope="module")
def converting_model(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> str:
    """A small model that calls the tool of the pipeline."""
    chain = ("\n", "<", "convert", ">", "3", " m", " in", " cm", " <", "/", "convert", ">")
    return str(save_speaking_model(tmp_path_factory.mktemp("converting_model"), smollm2, [chain]))


def check_pipeline(trial: Trial) -> None:
    (result,) = trial.results
    assert at(result, "env_runners/num_episodes") == 8
    assert result["unit_calls"] > 0
    evaluated = at(result, "evaluation/env_runners")
    assert evaluated["error_rate"] == pytest.approx(1 - evaluated["accuracy"])


PIPELINE = ("train", "file", str(TUNED_EXAMPLES / "rapo_pipeline.py"))


def test_the_pipeline(tmp_path: Path, converting_model: str, ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_pipeline(trained_here(monkeypatch, *PIPELINE, *options(converting_model, **CONVERTING)))


@pytest.mark.slow  # 45 s; in short: the one above
def test_the_pipeline_by_tune(tmp_path: Path, converting_model: str) -> None:
    (trial,) = trained(tmp_path, converting_model, *PIPELINE, **CONVERTING)
    check_pipeline(trial)
