"""RAPO under Tune: by name, as a grid."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import at
from letters_env import Letters

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


def test_a_grid_of_two(tmp_path: Path, small_model: str) -> None:
    from ray import tune

    import rapo_rllib  # noqa: F401  (makes the name known)

    space = {
        "env": Letters,
        "model": {"name_or_path": small_model},
        "engine": {"enforce_eager": True, "max_num_seqs": 16},
        "questions_per_step": 2,
        "group_size": tune.grid_search([2, 3]),
        "num_hybrid": 0,
        "num_minibatches": 1,
        "max_prompt_tokens": 192,
        "max_response_tokens": 12,
        "num_cpus_for_main_process": 3,  # one after the other
        "evaluate_before_training": False,
    }
    grid = tune.Tuner(
        "RAPO",
        param_space=space,
        run_config=tune.RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not grid.errors
    assert sorted(at(result.metrics, "env_runners/num_episodes") for result in grid) == [4, 6]
    assert {result.config["group_size"] for result in grid} == {2, 3}
