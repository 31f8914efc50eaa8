"""Two learners do what one does, with nothing to do for one of them as well; take over its state, and fail together, at once.

Each learner of Ray takes 7 s, so the tests of a file share two; the last of them breaks them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.cloudpickle
import tiny_learner
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from tiny_learner import TinyConfig, trajectory, trajectory_groups

from rapo_rllib.algorithm.config import RAPOConfig
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.checkpoints.algorithm import AlgorithmCheckpoints, save_training_state
from rapo_rllib.errors import CheckpointError, LearnerError
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.learner.ranks import RAPOLearnerGroup
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import EXPERT, REPLAY, Trajectory, TrajectoryGroup
from rapo_rllib.weights.packing import unpack_weights

# Ray's workers cannot import modules of this folder
ray.cloudpickle.register_pickle_by_value(tiny_learner)
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.usefixtures("ray_session")


def end(learner: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL) if learner._learner_index else time.sleep(600)


class LearnerThatFails(RAPOTorchLearner):
    """Its rank 1 raises in the forward pass once it is broken, or ends; the other hears nothing of that end."""

    broken = ends = False

    def _micro_batch_loss(self, *args: Any) -> torch.Tensor:
        if self._learner_index == 1 and self.broken:
            raise OSError("a disk is gone")
        if self.ends:
            end(self)
        return super()._micro_batch_loss(*args)


def batch(count: int, num_minibatches: int = 1) -> TrainingBatch:
    return TrainingBatch.from_groups(trajectory_groups(count), ObjectiveSettings(), num_minibatches)


def weights(group: LearnerGroup) -> dict[str, torch.Tensor]:
    return unpack_weights(group.get_state(components="learner/rl_module")["learner"]["rl_module"][DEFAULT_MODULE_ID])


def metric(results: dict[str, Any], name: str) -> float:
    return float(results[DEFAULT_MODULE_ID][name].peek())


SETTINGS: dict[str, Any] = {"num_epochs": 2, "lr": 1e-2, "old_logprobs": "learner", "learner_class": LearnerThatFails}
STEPS = {NUM_ENV_STEPS_SAMPLED_LIFETIME: 0}


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[RAPOLearnerGroup]:
    """Those with shards are in test_fsdp.py, and under Ray in e2e/test_scaling.py."""
    group = RAPOLearnerGroup(config=TinyConfig(folder, num_learners=2, learner_parallelism="ddp", **SETTINGS))
    yield group
    group.shutdown()


def one(folder: Path) -> LearnerGroup:
    return LearnerGroup(config=TinyConfig(folder, **SETTINGS))


def answers(group: LearnerGroup, function: Any) -> list[Any]:
    return [result.get() for result in group.foreach_learner(function).result_or_errors]


def test_config_builds_this_group(folder: Path) -> None:
    config = RAPOConfig().training(model={"name_or_path": str(folder)}).learners(num_learners=0)
    group = config.build_learner_group()
    assert isinstance(group, RAPOLearnerGroup) and isinstance(group._learner, RAPOTorchLearner)
    assert weights(group).keys() == group._learner.policy.weights().keys()


def test_two_learners_equal_one(folder: Path, two: RAPOLearnerGroup) -> None:
    check_that_they_equal_one(one(folder), two)


def credited(count: int) -> list[TrajectoryGroup]:
    """Groups of four whose steps were paid, the last with an unaided form and an earlier rollout beside it."""
    groups = trajectory_groups(count, size=4)
    for number, group in enumerate(groups):
        for index, member in enumerate(group.trajectories):
            member.steps[0].reward = 0.25 * index
        helped = group.trajectories[-1]
        helped.unaided = Trajectory(helped.question_id, helped.prompt_ids, origin=EXPERT, reward=helped.reward)
        helped.unaided.append_observation(helped.token_ids[:5])
        helped.unaided.append_expert(helped.token_ids[5:])
        earlier = trajectory(helped.question_id, helped.prompt_ids, [("policy", 5)], 1.0, seed=900 + number)
        earlier.origin = REPLAY
        group.off_policy = [earlier]
    return groups


CREDIT = [
    {"credit": "gigpo", "step_discount": 0.9, "advantage_baseline": "kind"},
    {"credit": "gigpo", "shown_steps": "own"},
]


@pytest.mark.parametrize("keys", CREDIT, ids=lambda keys: "-".join(map(str, keys.values())))
def test_two_learners_equal_one_where_steps_have_credit(
    folder: Path, two: RAPOLearnerGroup, tmp_path: Path, keys: dict[str, Any]
) -> None:
    objective = ObjectiveSettings(**keys)
    given = [TrainingBatch.from_groups(credited(count), objective, minibatches) for count, minibatches in ((4, 2), (1, 1))]
    samples = [sample for group in given[0].groups for sample in group.samples]
    of_a_group = 5 if "advantage_baseline" in keys else 6  # one alone of its kind has nothing to teach its unaided form
    assert any(len(np.unique(sample.advantages)) > 1 for sample in samples) and len(samples) == 4 * of_a_group
    alone, state = one(folder), str(tmp_path / "state")
    alone.update(training_data=batch(1), timesteps=STEPS)
    answers(alone, lambda learner: learner.save_training_state(state))
    answers(two, lambda learner: learner.load_training_state(state, 0))  # what tests before have left in the optimiser is gone
    check_that_they_equal_one(alone, two, given)


def check_that_they_equal_one(
    local: LearnerGroup, remote: RAPOLearnerGroup, given: Sequence[TrainingBatch] | None = None
) -> None:
    began = answers(remote, lambda learner: learner._weights_seq_no)[0]
    # 4 groups in 2 minibatches; then 1 group, so that one learner has nothing to do; then none at all
    given = [batch(4, num_minibatches=2), batch(1), batch(0)] if given is None else given
    start, before = local.get_state(components="learner/rl_module"), weights(local)
    for data in given:
        (expected,) = local.update(training_data=data, timesteps=STEPS)
        two = remote.update(training_data=data, timesteps=STEPS)
        assert len(two) == 2
        for name in ("total_loss", "gradient_norm", "entropy", "ratio_max", "num_tokens", "num_steps", "mismatch"):
            for result in two:
                assert metric(result, name) == pytest.approx(metric(expected, name), rel=1e-3, abs=1e-5), name
        ours, theirs = weights(local), weights(remote)
        for name, tensor in ours.items():
            torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=2e-4)
    assert answers(remote, lambda learner: learner._weights_seq_no) == [began + len(given)] * 2
    scores = answers(remote, lambda learner: learner.score([[4, 5, 6]]))
    assert scores[0] == scores[1]
    assert scores[0][0] == pytest.approx(local._learner.score([[4, 5, 6]])[0], abs=0.02)
    remote.set_state({"learner": {"rl_module": start["learner"]["rl_module"]}})
    restored = weights(remote)
    assert all(torch.equal(tensor, restored[name]) for name, tensor in before.items())


def held(learner: Any) -> list[torch.Tensor]:
    """Weights, and what the optimiser keeps for each."""
    (optimizer,) = learner._named_optimizers.values()
    kept = [values[name].clone() for values in optimizer.state_dict()["state"].values() for name in sorted(values)]
    return [*(parameter.detach().clone() for parameter in learner.policy.language_model.parameters()), *kept]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 2)])
def test_a_state_on_another_number_of_learners(
    folder: Path, two: RAPOLearnerGroup, tmp_path: Path, before: int, after: int
) -> None:
    state = str(tmp_path / "state")
    saved, restored = (two if number == 2 else one(folder) for number in (before, after))
    saved.update(training_data=batch(4, num_minibatches=2), timesteps=STEPS)
    answers(saved, lambda learner: learner.save_training_state(state))
    (expected, *_) = answers(saved, held)
    size = sum(file.stat().st_size for file in Path(state).iterdir())
    assert size < 1.7 * sum(tensor.numel() * 4 for tensor in expected) + 50_000  # replicas are written once
    restored.update(training_data=batch(1), timesteps=STEPS)  # newer, and still it is restored
    assert not all(torch.equal(a, b) for a, b in zip(answers(restored, held)[0], expected, strict=True))
    answers(restored, lambda learner: learner.load_training_state(state, 0))
    for found in answers(restored, held):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_learner_that_cannot_write_is_an_error_and_lives_on(two: RAPOLearnerGroup, tmp_path: Path) -> None:
    (tmp_path / "state" / "__0_0.distcp").mkdir(parents=True)  # in the way of the first learner's file
    checkpoints = AlgorithmCheckpoints(two, nullcontext(), with_policy=False)
    with pytest.raises(CheckpointError, match=r"learner 0: .*__0_0.distcp"):
        checkpoints.on_all_learners(tmp_path / "state", save_training_state, writes=True)
    checkpoints.on_all_learners(tmp_path / "other", save_training_state, writes=True)
    assert (tmp_path / "other" / ".metadata").exists()


def test_a_state_that_a_learner_cannot_take_is_an_error_and_it_lives_on(two: RAPOLearnerGroup) -> None:
    state = two.get_state()
    with pytest.raises(LearnerError, match="taking a state failed on learner 0: "):
        two.set_state({"learner": {"rl_module": {"default_policy": {}}}})
    two.set_state(state)


def test_one_failure_is_an_error_for_all(two: RAPOLearnerGroup) -> None:
    """The last: RLlib takes learners that raised for broken ones, and asks them no more."""
    two.foreach_learner(lambda learner: setattr(learner, "broken", True))
    start = time.monotonic()
    with pytest.raises(Exception, match="forward and backward failed on 1 of 2 learners; learner 1: OSError: a disk is gone"):
        two.update(training_data=batch(4), timesteps=STEPS)
    assert time.monotonic() - start < 60
    with pytest.raises(LearnerError, match="a learner has failed before"):
        two.update(training_data=batch(4), timesteps=STEPS)


@pytest.mark.parametrize("during", ["an update", "a test"])
def test_a_killed_learner_is_named_while_another_waits(folder: Path, during: str) -> None:
    group = RAPOLearnerGroup(config=TinyConfig(folder, num_learners=2, learner_parallelism="ddp", **SETTINGS))
    pids = answers(group, lambda _: os.getpid())
    group.foreach_learner(lambda learner: setattr(learner, "ends", True))
    with pytest.raises(LearnerError, match=rf"^learner 1 of 2 died in {during}: .* pid: {pids[1]} "):
        group.update(training_data=batch(4), timesteps=STEPS) if during == "an update" else group.on_all(end, during)
    os.kill(pids[0], signal.SIGKILL)  # of a machine that is there no more it would hear nothing for half an hour
    group.shutdown()
