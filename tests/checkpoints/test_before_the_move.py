"""A checkpoint that was written while all modules of the package lay in its root: its pickles name them there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from places import SUPPORT
from safetensors.torch import load_file

from rapo_rllib import RAPO, RAPOConfig
from rapo_rllib.checkpoints.trained_config import trained_algorithm

pytestmark = pytest.mark.e2e
# two iterations of GRPO with ``tiny_models.save_tiny_model``, which RAPO.save_to_path wrote
OLD = SUPPORT / "checkpoint_before_the_move"


def test_its_pickles_name_the_old_places_and_are_read() -> None:
    named = (OLD / "class_and_ctor_args.pkl").read_bytes()
    for module in (b"rapo_rllib.algorithm", b"rapo_rllib.config", b"rapo_rllib.env_runner", b"rapo_rllib.evaluation"):
        assert module in named
    algorithm, config = trained_algorithm(OLD)
    assert algorithm is RAPO
    assert isinstance(config, RAPOConfig)
    assert (config.questions_per_step, config.max_response_tokens) == (2, 16)


def test_it_restores_and_trains_on(tmp_path: Path, ray_session: None) -> None:
    checkpoint = Path(shutil.copytree(OLD, tmp_path / "checkpoint"))
    _, config = trained_algorithm(checkpoint)
    config.training(model={"name_or_path": str(checkpoint / "policy")})
    algorithm = RAPO.from_checkpoint(str(checkpoint), config=config)
    try:
        before = load_file(checkpoint / "policy" / "model.safetensors")
        held = algorithm.learner_group.foreach_learner(lambda learner: learner.policy.language_model.state_dict())
        (weights,) = [result.get() for result in held]
        assert all(torch.equal(weights[name], value) for name, value in before.items())
        result = algorithm.train()
        assert result["training_iteration"] == 3
        assert result["env_runners"]["num_env_steps_sampled_lifetime"] > result["env_runners"]["num_env_steps_sampled"]
    finally:
        algorithm.stop()
