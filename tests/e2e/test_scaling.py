"""Several processes: learners that act as one, engines that hold what the learners hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import at, small_config
from letters_env import log_episode, weights

from rapo_rllib import RAPO
from rapo_rllib.errors import CheckpointError

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def two_learners(ray_session: None, small_model: str) -> Iterator[Any]:
    config = (
        small_config(small_model)
        .env_runners(num_env_runners=1)
        .learners(num_learners=2)
        .training(max_staleness=1, learner_parallelism="fsdp", evaluate_before_training=False)
        .evaluation(evaluation_interval=1, evaluation_duration=2)  # on the env runner that trains
        .callbacks(on_episode_end=log_episode)
    )
    algorithm = config.build_algo()
    yield algorithm
    algorithm.stop()


def check_evaluated(result: dict[str, Any], version: int) -> None:
    """Two questions, once each, by the weights that the update has just made, beside a batch that older ones sampled."""
    evaluated = at(result, "evaluation/env_runners")
    assert (evaluated["num_episodes"], evaluated["episodes_seen"]) == (2, 2)
    assert at(result, "env_runners/sampled_by") < evaluated["sampled_by"] == version
    assert 0 <= evaluated["accuracy"] <= 1 and 0 <= evaluated["episode_return_mean"] <= 1


def test_one_env_runner_and_two_learners(two_learners: Any) -> None:
    def learner_weights() -> list[np.ndarray]:
        return [result.get() for result in two_learners.learner_group.foreach_learner(weights).result_or_errors]

    before = learner_weights()
    result = two_learners.train()
    after = learner_weights()
    assert len(after) == 2
    assert np.array_equal(after[0], after[1])
    assert not np.array_equal(before[0], after[0])
    copied = two_learners.get_module().language_model.state_dict()
    assert np.array_equal(copied["model.layers.3.mlp.up_proj.weight"].numpy(), after[0])
    assert at(result, "learners/default_policy/num_steps") == 1
    held = two_learners.env_runner_group.foreach_env_runner(lambda runner: runner.policy_version, local_env_runner=False)
    assert held == [1] == [at(result, "sync/weight_version")]
    assert at(result, "sync/canary_mean") < 0.01
    assert 16 <= at(result, "env_runners/episodes_seen") <= 32  # callbacks are told of all that have ended
    assert at(result, "env_runners/num_episodes") == 16
    assert at(result, "sync/staleness_max") == 0  # the first batch had to be waited for
    check_evaluated(result, 1)


def test_the_next_rollout_ran_beside_the_update(two_learners: Any) -> None:
    result = two_learners.train()
    # begun beside the first update, and gone on with by its weights where it was not complete
    assert 0 < at(result, "sync/staleness_mean") <= at(result, "sync/staleness_max") == 1
    assert at(result, "env_runners/num_episodes") == 16
    check_evaluated(result, 2)
    assert at(result, "learners/default_policy/num_steps") == 1
    asked, state = two_learners._cursor.position, two_learners._sampling.get_state()
    assert 12 <= asked <= 16  # two batches of four trained on, one begun, another where there is room
    assert len(state["again"]) == state["position"] - 8  # a checkpoint asks the others again
    held = two_learners.env_runner_group.foreach_env_runner(lambda runner: runner.policy_version, local_env_runner=False)
    assert held == [2]


def test_its_checkpoint_goes_on_with_one_learner_in_this_process(two_learners: Any, tmp_path: Path, small_model: str) -> None:
    from transformers import AutoModelForCausalLM

    saved = two_learners.save_to_path(tmp_path / "checkpoint")
    (expected, _) = (result.get() for result in two_learners.learner_group.foreach_learner(weights).result_or_errors)
    algorithm = RAPO.from_checkpoint(saved, config=small_config(small_model))
    try:
        learner = algorithm.learner_group._learner
        assert np.array_equal(weights(learner), expected)
        assert algorithm.iteration == two_learners.iteration == 2
        assert algorithm.env_runner.policy_version == 2
        untrained = algorithm._cursor.get_state()["again"]
        assert algorithm._cursor.position == 8 + len(untrained) and len(untrained) >= 4
        (optimizer,) = learner._named_optimizers.values()
        assert {float(values["step"]) for values in optimizer.state_dict()["state"].values()} == {2.0}
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint" / "policy").state_dict()
        assert np.array_equal(exported["model.layers.3.mlp.up_proj.weight"].numpy(), expected)
        lifetime = "env_runners/num_episodes_lifetime"
        assert at(algorithm.train(), lifetime) == 3 * 16
        assert algorithm._cursor.get_state()["again"] == untrained[4:]  # its batch was the first four of them
    finally:
        algorithm.stop()


def test_a_damaged_checkpoint_is_refused(two_learners: Any, tmp_path: Path) -> None:
    saved = Path(two_learners.save_to_path(tmp_path / "checkpoint"))
    (part, *_) = (saved / "training_state").glob("*.distcp")
    with part.open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    with pytest.raises(CheckpointError, match=rf"{part.name} is not what was written"):
        two_learners.restore_from_path(saved)


@pytest.mark.slow  # 15 s
def test_evaluation_on_its_own_env_runner(small_model: str) -> None:
    config = small_config(small_model).evaluation(evaluation_interval=1, evaluation_duration=4, evaluation_num_env_runners=1)
    algorithm = config.build_algo()
    try:
        result = algorithm.train()
        assert at(result, "evaluation/env_runners/num_episodes") == 4
        group = algorithm.eval_env_runner_group
        held = group.foreach_env_runner(lambda runner: runner.policy_version, local_env_runner=False)
        assert held == [at(result, "sync/weight_version")]
    finally:
        algorithm.stop()
