"""Jobs that compare each step with the nearest one of the buffer (StepAgent), with no step shown; and a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import at, built_here, merged, short_job

from rapo_rllib import RAPO

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


def built(folder: Path, model: str, form: str, **changes: Any) -> RAPO:
    preset = {"preset": f"stepagent_{form}", "num_hybrid": 0, "clip_high": 0.28}
    job = short_job(folder, **merged({"model": {"name_or_path": model}}, changes), **preset)
    return built_here(job, evaluation_interval=None, evaluate_before_training=False)  # type: ignore[no-any-return]


def counted(result: dict[str, Any], *names: str) -> float:
    return float(sum(at(result, f"step_comparison/{name}") for name in names))


def test_the_implicit_form_trains_on_steps_that_nobody_was_shown(tmp_path: Path, small_model: str) -> None:
    """Adapters on two learners, and rollouts beside updates."""
    beside = {"num_env_runners": 1, "max_staleness": 1, "num_learners": 2, "model": {"lora": {"rank": 4, "alpha": 8}}}
    algorithm = built(tmp_path, small_model, "implicit", **beside)
    try:
        results = [algorithm.train() for _ in range(2)]
    finally:
        algorithm.stop()
    for result in results:
        steps = counted(result, "steps")
        pairs = at(result, "learners/default_policy/num_preferences")
        left_out = counted(result, "not_found", "unanswered", "same", "answers", "too_long")
        assert steps == at(result, "env_runners/num_env_steps_sampled") == pairs + left_out
        assert pairs > 0 and at(result, "env_runners/retrieval/count") == 0
        assert at(result, "learners/default_policy/num_steps") == 1
        assert at(result, "learners/default_policy/gradient_norm") > 0
    margins = [at(result, "learners/default_policy/preference_margin") for result in results]
    assert margins[0] == pytest.approx(0.0, abs=1e-4) and margins[1] != 0.0  # the reference is the model that it began with


def test_the_inverse_forms_discriminator_goes_on_with_the_run(tmp_path: Path, small_model: str) -> None:
    algorithm = built(tmp_path, small_model, "inverse")
    try:
        first, second = algorithm.train(), algorithm.train()
        assert counted(first, "discriminator_accuracy") == 0.0 and counted(first, "reward") < 0.0
        assert at(second, "learners/default_policy/gradient_norm") > 0  # whatever the outcomes are
        learned = algorithm._step_comparison.get_state()
        checkpoint = algorithm.save_to_path(tmp_path / "checkpoint")
    finally:
        algorithm.stop()
    restored = RAPO.from_checkpoint(str(checkpoint))
    try:
        assert torch.equal(restored._step_comparison.get_state(), learned)
    finally:
        restored.stop()
