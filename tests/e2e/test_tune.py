"""RAPO by name, as a grid: trials made in this process as Tune makes them, and by Tune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import at
from letters_env import Letters

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


def grid(model: str) -> dict[str, Any]:
    """What a user gives to Tune."""
    from ray import tune

    return {
        "env": Letters,
        "model": {"name_or_path": model},
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


def in_this_process(space: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One iteration of each trial, with Tune's own search and registry."""
    from ray.tune.registry import get_trainable_cls
    from ray.tune.search.variant_generator import generate_variants

    for _, config in generate_variants(space):
        algorithm = get_trainable_cls("RAPO")(config=config)
        try:
            yield algorithm.train()
        finally:
            algorithm.stop()


def check(results: list[dict[str, Any]]) -> None:
    """All write their first step from the same state, which ``gigpo`` alone makes groups of."""
    found = [(result["config"]["credit"], at(result, "learners/default_policy/grouped_step_share")) for result in results]
    assert sorted(found) == [("gigpo", 1.0), ("step", 0.0)]


def test_a_grid_of_two(small_model: str) -> None:
    import rapo_rllib  # noqa: F401  (makes the name known)

    check(list(in_this_process(grid(small_model))))


@pytest.mark.slow  # 35 s: two processes of trials
def test_a_grid_of_two_by_tune(tmp_path: Path, small_model: str) -> None:
    from ray import tune

    import rapo_rllib  # noqa: F401  (makes the name known)

    tuned = tune.Tuner(
        "RAPO",
        param_space=grid(small_model),
        run_config=tune.RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not tuned.errors
    check([{**(result.metrics or {}), "config": result.config} for result in tuned])
