"""RAPO by name, as a grid in trials of Tune. Without Tune: test_population.py; other credits: tests/batching/test_credit.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import at
from letters_env import Letters

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


@pytest.mark.slow  # 35 s: two processes of trials
def test_a_grid_of_two(tmp_path: Path, small_model: str) -> None:
    """All write their first step from the same state, which ``gigpo`` alone makes groups of."""
    from ray import tune

    import rapo_rllib  # noqa: F401  (makes the name known)

    space = {
        "env": Letters,
        "model": {"name_or_path": small_model},
        "engine": {"enforce_eager": True, "max_num_seqs": 16, "kv_cache_gib": 0.2},
        "questions_per_step": 2,
        "group_size": 3,
        "credit": tune.grid_search(["step", "gigpo"]),
        "num_hybrid": 0,
        "num_minibatches": 1,
        "max_prompt_tokens": 192,
        "max_response_tokens": 12,
        "num_cpus_for_main_process": 3,  # one after the other
        "evaluate_before_training": False,
    }
    run = tune.RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0)
    tuned = tune.Tuner("RAPO", param_space=space, run_config=run).fit()
    assert not tuned.errors
    results = [(result.config["credit"], result.metrics or {}) for result in tuned]
    shares = [(credit, at(metrics, "learners/default_policy/grouped_step_share")) for credit, metrics in results]
    assert sorted(shares) == [("gigpo", 1.0), ("step", 0.0)]
