"""tuned_examples/rapo_in_rllib.py with a small model: PPO beside RAPO, its search by Tune, its evaluation."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jobs import TUNED_EXAMPLES, at
from ray.cloudpickle import register_pickle_by_value, unregister_pickle_by_value

from rapo_rllib import RAPOConfig

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(TUNED_EXAMPLES)
    module = importlib.import_module("rapo_in_rllib")
    register_pickle_by_value(module)  # as what a script defines itself
    yield module
    unregister_pickle_by_value(module)


def keys(model: str) -> dict[str, Any]:
    """What is small: as one writes it in a job."""
    return {
        "model": {"name_or_path": model, "autocast_dtype": "float32"},
        "engine": {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 16, "kv_cache_gib": 0.2},
        "step_trace_buffer": {"uri": str(Path.cwd() / "traces.db"), "max_traces": 20},
        "questions_per_step": 2,
        "group_size": 2,
        "num_hybrid": 1,
        "max_response_tokens": 16,
        "learner_num_threads": 1,
        "evaluate_before_training": False,
    }


def small(script: ModuleType, model: str) -> RAPOConfig:
    changed: RAPOConfig = script.rapo.copy(copy_frozen=False)
    return changed.training(**keys(model)).evaluation(evaluation_duration=3)


def test_ppo_beside_rapo(script: ModuleType, small_model: str) -> None:
    configs = {"PPO": script.ppo.copy(copy_frozen=False), "RAPO": small(script, small_model)}
    returns = script.side_by_side(configs, iterations=1)
    assert returns["PPO"][0] > 5 and 0 <= returns["RAPO"][0] <= 2
    assert [len(found) for found in returns.values()] == [1, 1]


def test_the_search_narrows_down(script: ModuleType) -> None:
    """Around the best of three, in a space where the highest is best."""
    searcher = script.NarrowsDown({"lr": (-6.0, -4.0)})
    for trial in "abc":
        searcher.on_trial_complete(trial, {script.METRIC: searcher.suggest(trial)["lr"]})
    best = max(10 ** exponents["lr"] for exponents in searcher._asked.values())
    later = [searcher.suggest(f"later-{index}")["lr"] for index in range(20)]
    assert all(1e-6 <= value <= 1e-4 for value in later)
    assert later[-1] == pytest.approx(best, rel=1e-3)
    searcher.on_trial_complete("later-0", error=True)


@pytest.mark.slow  # 60 s: two processes of trials
def test_tune_searches(script: ModuleType, small_model: str, tmp_path: Path) -> None:
    """With a plain dictionary in place of a config, as Tune takes both."""
    evaluation = {"evaluation_interval": 1, "evaluation_duration": 3, "custom_evaluation_function": script.median_length}
    plain = {"env": "rapo/word_problems", "env_config": {"steps": [1, 2]}, **keys(small_model), **evaluation}
    found = script.search(plain, trials=2, iterations=1, storage_path=str(tmp_path / "results"))
    assert not found.errors and len(found) == 2
    results: list[dict[str, Any]] = [result.metrics or {} for result in found]
    assert len({result["config"]["lr"] for result in results}) == 2
    for result in results:
        assert at(result, "evaluation/env_runners/num_episodes") == 3
        assert at(result, "evaluation/env_runners/median_length") > 0
        assert 1e-6 <= result["config"]["lr"] <= 1e-4 and 0.6 <= result["config"]["temperature"] <= 1
