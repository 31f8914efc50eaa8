"""Rollouts that go on beside updates, with a real engine: what is trained on, evaluations, checkpoints, an engine that dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from jobs import at, small_config
from letters_env import weights

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]

STALENESS = 2


@pytest.fixture(scope="module")
def algorithm(ray_session: None, small_model: str) -> Iterator[Any]:
    config = (
        small_config(small_model)
        .env_runners(num_env_runners=1)
        .training(max_staleness=STALENESS, evaluate_before_training=False, transcripts=True, max_response_tokens=48)
        .evaluation(evaluation_interval=2, evaluation_duration=2)
    )
    algorithm = config.build_algo()
    yield algorithm
    algorithm.stop()


def rows(algorithm: Any, iteration: int) -> list[dict[str, Any]]:
    file = Path(algorithm.logdir) / "transcripts" / f"iteration_{iteration:05d}.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def check_iteration(algorithm: Any, result: dict[str, Any]) -> list[str]:
    """Four whole groups, none too old; returns their questions."""
    version = at(result, "sync/weight_version")
    trained_on = version - 1
    trajectories = rows(algorithm, algorithm.iteration)
    assert len(trajectories) == at(result, "env_runners/num_episodes") == 16
    for trajectory in trajectories:
        versions = [trajectory["policy_version"], *(of for _, of in trajectory["version_changes"])]
        assert trained_on - STALENESS <= versions[0] <= versions[-1] <= trained_on and versions == sorted(versions)
    assert 0 <= at(result, "sync/staleness_mean") <= at(result, "sync/staleness_max") <= STALENESS
    assert at(result, "sync/canary_mean") < 0.01
    held = algorithm.env_runner_group.foreach_env_runner(lambda runner: runner.policy_version, local_env_runner=False)
    assert held == [version]
    questions = [trajectory["question_id"] for trajectory in trajectories[::4]]
    assert len(set(questions)) == 4
    return questions


def test_updates_do_not_wait_and_no_question_is_lost(algorithm: Any) -> None:
    trained: list[str] = []
    oldest = 0.0
    for _ in range(4):
        result = algorithm.train()
        trained += check_iteration(algorithm, result)
        oldest = max(oldest, at(result, "sync/staleness_max"))
        assert at(result, "sampling/questions_again") == at(result, "sampling/env_runners_lost") == 0
    assert oldest > 0  # what was begun beside an update was trained on by a later one
    assert len(set(trained)) == 16 and 0 <= at(result, "evaluation/env_runners/accuracy") <= 1
    state = algorithm._sampling.get_state()
    assert state["position"] == len(trained) + len(state["again"])
    assert len(state["again"]) <= (STALENESS + 1) * 4


def test_a_checkpoint_asks_again_what_nobody_trained_on(algorithm: Any, tmp_path: Path) -> None:
    saved = algorithm.save_to_path(tmp_path / "checkpoint")
    state, before = algorithm._sampling.get_state(), weights(algorithm.learner_group._learner)
    check_iteration(algorithm, algorithm.train())
    assert not np.array_equal(weights(algorithm.learner_group._learner), before)
    algorithm.restore_from_path(saved)
    assert np.array_equal(weights(algorithm.learner_group._learner), before)
    assert algorithm.iteration == 4
    again = algorithm._sampling.get_state()["again"]
    assert set(state["again"]) <= set(again)
    expected = [algorithm._cursor._at(place).id for place in again]
    assert set(check_iteration(algorithm, algorithm.train())) <= set(expected)


def test_an_engine_that_dies_loses_no_question(algorithm: Any) -> None:
    (actor,) = algorithm.env_runner_group._worker_manager.actors().values()
    ray.kill(actor, no_restart=False)
    result = algorithm.train()
    while not at(result, "sampling/questions_again"):  # the groups of the first iteration may have been there
        result = algorithm.train()
    assert at(result, "sampling/env_runners_lost") == 1
    check_iteration(algorithm, result)
    state = algorithm._sampling.get_state()
    trained = {place for place in range(state["position"])} - set(state["again"])
    assert len(trained) == 4 * algorithm.iteration
