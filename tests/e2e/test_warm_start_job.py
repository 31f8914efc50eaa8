"""A job with a warm start: engine and learner begin with its model, and so does the run that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import built_here, short_job
from safetensors.torch import load_file

pytestmark = pytest.mark.e2e


def test_a_warm_started_job(tmp_path: Path, small_model: str, ray_session: None) -> None:
    from rapo_rllib import RAPO

    warm = {"num_trajectories": 8, "batch_size": 8, "lr": 1e-3, "folder": str(tmp_path / "kept")}
    job = short_job(tmp_path, model={"name_or_path": small_model}, warm_start=warm)
    algorithm = built_here(job, evaluation_interval=None, evaluate_before_training=False)
    try:
        folder = Path(algorithm.config.settings.model.name_or_path)
        assert folder.parent == tmp_path / "kept"
        begun = load_file(folder / "model.safetensors")
        policy = algorithm.get_module().language_model.state_dict()
        assert all((policy[name] == begun[name]).all() for name in begun)
        result = algorithm.train()
        assert result["warm_start"]["num_trajectories"] == 8 and not result["warm_start"]["cached"]
        checkpoint = algorithm.save_to_path(tmp_path / "checkpoint")
        trained = {name: value.clone() for name, value in algorithm.get_module().language_model.state_dict().items()}
    finally:
        algorithm.stop()
    restored = RAPO.from_checkpoint(str(checkpoint))
    try:
        assert restored._warm_start.cached
        policy = restored.get_module().language_model.state_dict()
        assert all((policy[name] == trained[name]).all() for name in trained)
    finally:
        restored.stop()
