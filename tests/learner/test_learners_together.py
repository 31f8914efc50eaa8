"""Two learners do what one does, with nothing to do for one of them as well; and fail together, at once."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray.cloudpickle
import tiny_learner
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from tiny_learner import TinyConfig, trajectory_groups
from tiny_models import save_tiny_model

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.config import RAPOConfig
from rapo_rllib.learner import RAPOTorchLearner
from rapo_rllib.learner_group import RAPOLearnerGroup
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.weights import unpack_weights

# Ray's workers cannot import modules of this folder
ray.cloudpickle.register_pickle_by_value(tiny_learner)
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


class LearnerThatFails(RAPOTorchLearner):
    """Its rank 1 raises in the forward pass once it is broken."""

    broken = False

    def _micro_batch_loss(self, *args: Any) -> torch.Tensor:
        if self._learner_index == 1 and self.broken:
            raise OSError("a disk is gone")
        return super()._micro_batch_loss(*args)


def batch(count: int, num_minibatches: int = 1) -> TrainingBatch:
    return TrainingBatch.from_groups(trajectory_groups(count), ObjectiveSettings(), num_minibatches)


def weights(group: LearnerGroup) -> dict[str, torch.Tensor]:
    return unpack_weights(group.get_state(components="learner/rl_module")["learner"]["rl_module"][DEFAULT_MODULE_ID])


def metric(results: dict[str, Any], name: str) -> float:
    return float(results[DEFAULT_MODULE_ID][name].peek())


# with shards, 17 s: also in test_fsdp.py, and under Ray in e2e/test_scaling.py
@pytest.mark.parametrize("parallelism", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_learners_equal_one_and_fail_together(folder: Path, parallelism: str) -> None:
    settings = {"num_epochs": 2, "lr": 1e-2, "old_logprobs": "learner", "learner_class": LearnerThatFails}
    local = LearnerGroup(config=TinyConfig(folder, **settings))
    remote = RAPOLearnerGroup(config=TinyConfig(folder, num_learners=2, learner_parallelism=parallelism, **settings))
    try:
        start, before = local.get_state(components="learner/rl_module"), weights(local)
        # 4 groups in 2 minibatches; then 1 group, so that one learner has nothing to do; then none at all
        for data in (batch(4, num_minibatches=2), batch(1), batch(0)):
            timesteps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: 0}
            (one,) = local.update(training_data=data, timesteps=timesteps)
            two = remote.update(training_data=data, timesteps=timesteps)
            assert len(two) == 2
            for name in ("total_loss", "gradient_norm", "entropy", "ratio_max", "num_tokens", "num_steps", "mismatch"):
                for result in two:
                    assert metric(result, name) == pytest.approx(metric(one, name), rel=1e-3, abs=1e-5), name
            ours, theirs = weights(local), weights(remote)
            for name, tensor in ours.items():
                torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=2e-4)
        versions = [r.get() for r in remote.foreach_learner(lambda learner: learner._weights_seq_no).result_or_errors]
        assert versions == [3, 3]
        scores = [r.get() for r in remote.foreach_learner(lambda learner: learner.score([[4, 5, 6]])).result_or_errors]
        assert scores[0] == scores[1]
        assert scores[0][0] == pytest.approx(local._learner.score([[4, 5, 6]])[0], abs=0.02)
        remote.set_state({"learner": {"rl_module": start["learner"]["rl_module"]}})
        restored = weights(remote)
        assert all(torch.equal(tensor, restored[name]) for name, tensor in before.items())
        check_that_one_failure_is_an_error_for_all(remote)
    finally:
        remote.shutdown()


def check_that_one_failure_is_an_error_for_all(group: LearnerGroup) -> None:
    group.foreach_learner(lambda learner: setattr(learner, "broken", True))
    start = time.monotonic()
    with pytest.raises(Exception, match="forward and backward failed on 1 of 2 learners; learner 1: OSError: a disk is gone"):
        group.update(training_data=batch(4), timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: 0})
    assert time.monotonic() - start < 60


def test_config_builds_this_group(folder: Path) -> None:
    config = RAPOConfig().training(model={"name_or_path": str(folder)}).learners(num_learners=0)
    group = config.build_learner_group()
    assert isinstance(group, RAPOLearnerGroup) and isinstance(group._learner, RAPOTorchLearner)
    assert weights(group).keys() == group._learner.policy.weights().keys()
