"""Schedules of the reward go by the env steps that the training has sampled: from the driver to each environment."""

from __future__ import annotations

import pytest
from jobs import at, small_config
from letters_env import Counted

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


def test_environments_are_told_how_far_the_training_is(small_model: str) -> None:
    """Sixteen episodes of one step an iteration. Held-out questions are judged by where schedules end."""
    config = (
        small_config(small_model)
        .environment(Counted)
        .env_runners(num_env_runners=0)
        .evaluation(evaluation_interval=1, evaluation_duration=2)
    )
    algorithm = config.training(evaluate_before_training=False).build_algo()
    try:
        for before in (0.0, 16.0):
            result = algorithm.train()
            assert at(result, "env_runners/episode_return_mean") == before
            assert at(result, "evaluation/env_runners/episode_return_mean") == -1.0
        runner = algorithm.env_runner
        assert {one.get_return() for one in runner.sample(num_episodes=4)} == {16.0}, "as the training was last"
        assert {one.get_return() for one in runner.sample(num_episodes=4, env_steps=99)} == {99.0}
        with runner.held_out():
            assert {one.get_return() for one in runner.sample(num_episodes=2)} == {-1.0}
    finally:
        algorithm.stop()
