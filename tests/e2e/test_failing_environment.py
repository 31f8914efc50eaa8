"""A training whose environment fails: on nothing it does not go on, and the error says what failed most often."""

from __future__ import annotations

import pytest
from jobs import small_config
from letters_env import Broken

from rapo_rllib.errors import RolloutError

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]

ALL_FAILED = (
    r"all (\d+) trajectories of \d+ questions failed, \1 of them with: env.step failed: RuntimeError\('shop -\d is closed'\)"
)


def test_an_iteration_or_evaluation_in_which_all_fail_ends_the_run(small_model: str) -> None:
    config = small_config(small_model).environment(Broken, env_config={"works": 0}).env_runners(num_env_runners=0)
    config.evaluation(evaluation_interval=1, evaluation_duration=2)
    algorithm = config.training(evaluate_before_training=False).build_algo()
    try:
        with pytest.raises(RolloutError, match=ALL_FAILED):
            algorithm.train()
        with pytest.raises(RolloutError, match=ALL_FAILED):
            algorithm.evaluate()
    finally:
        algorithm.stop()
