"""Several processes: learners that act as one, engines that hold what the learners hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jobs import at, small_config
from letters_env import log_episode, weights

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def two_learners(ray_session: None) -> Iterator[Any]:
    config = (
        small_config()
        .env_runners(num_env_runners=1)
        .learners(num_learners=2)
        .evaluation(evaluation_interval=1, evaluation_duration=4, evaluation_num_env_runners=1)
        .callbacks(on_episode_end=log_episode)
    )
    algorithm = config.build_algo()
    yield algorithm
    algorithm.stop()


def test_one_env_runner_and_two_learners(two_learners: Any) -> None:
    def learner_weights() -> list[np.ndarray]:
        return [result.get() for result in two_learners.learner_group.foreach_learner(weights).result_or_errors]

    before = learner_weights()
    result = two_learners.train()
    after = learner_weights()
    assert len(after) == 2
    assert np.array_equal(after[0], after[1])
    assert not np.array_equal(before[0], after[0])
    assert at(result, "learners/default_policy/num_steps") == 1
    held = two_learners.env_runner_group.foreach_env_runner(lambda runner: runner.policy_version, local_env_runner=False)
    assert held == [1] == [at(result, "sync/weight_version")]
    assert at(result, "sync/canary_mean") < 0.01
    assert at(result, "env_runners/episodes_seen") == 16
    assert at(result, "env_runners/num_episodes") == 16


def test_evaluation_on_its_own_env_runner(two_learners: Any) -> None:
    result = two_learners.train()
    assert at(result, "evaluation/env_runners/num_episodes") == 4
    held = two_learners.eval_env_runner_group.foreach_env_runner(lambda runner: runner.policy_version, local_env_runner=False)
    assert held == [at(result, "sync/weight_version")]
