"""What is advised where a job does not fit its GPUs: worked by hand with a model of a thousand parameters, and a real one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import rapo_rllib.estimate.remedies as remedies
from rapo_rllib import RAPOConfig
from rapo_rllib.estimate.engine import engine_of
from rapo_rllib.estimate.layout import CUDA_DEVICE, Job
from rapo_rllib.estimate.micro_batch import MicroBatch
from rapo_rllib.estimate.remedies import changes, remedy, with_keys
from rapo_rllib.estimate.shape import ModelShape
from rapo_rllib.estimate.states import learner_states
from rapo_rllib.estimate.tokens import tokens_per_iteration
from rapo_rllib.settings import Settings

SHAPE = ModelShape(1000, 1000, 0, 0, 0, 0, 300, True, 3, 2, 4, 8, 12, 10)
ACTIVATIONS = {False: 9000, True: 700}  # bytes, by gradient checkpointing


def settings_of(**keys: Any) -> Settings:
    job = {"num_learners": 1, "num_gpus_per_learner": 1, "num_env_runners": 1, "num_gpus_per_env_runner": 1}
    model = {"gradient_checkpointing": False, "lora": {"rank": 1}, "autocast_dtype": None}
    return (
        RAPOConfig()
        .update_from_dict({"retrieval_prob": 0, "engine": {"dtype": "float32"}, "model": model, **job, **keys})
        .settings
    )


def sized(settings: Settings, known: Any = ()) -> Job:
    """16 bytes a parameter, of whom shards have a part; activations by gradient checkpointing."""
    tokens, learners = tokens_per_iteration(settings), settings.rllib.num_learners
    shards = learners if settings.update.learner_parallelism == "fsdp" else 1
    states = learner_states(SHAPE, replace(settings.model, lora=None), shards)
    passes = MicroBatch(0, ACTIVATIONS[bool(settings.model.gradient_checkpointing)])
    engine = engine_of(SHAPE, settings.engine, tokens.longest, True)
    return Job(settings, SHAPE, states, passes, replace(engine, weights=10, kv_per_token=1, computing=0), tokens, 100)


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "job_of", sized)


def test_the_least_loss_comes_first() -> None:
    """Weights, moments, gradients: 16,000 bytes; 9,000 of activations, or 700."""
    advice = remedy(sized(settings_of()), CUDA_DEVICE + 17_000)
    assert advice.startswith("set model.gradient_checkpointing to True, and the fullest GPU holds 0.5 GiB")


def test_shards_where_states_do_not_fit() -> None:
    """8,000 bytes of states in each of two learners and 9,000 of activations; shards of 16,000 alone need 25,000."""
    advice = remedy(sized(settings_of()), CUDA_DEVICE + 16_800)  # checkpointing leaves 16,700
    assert advice.startswith("set model.gradient_checkpointing to True, and")
    advice = remedy(sized(settings_of(model={"gradient_checkpointing": True, "lora": {"rank": 1}})), CUDA_DEVICE + 8_700)
    assert advice.startswith("set learner_parallelism to fsdp and num_learners to 2, and")


def test_several_changes_and_only_those_that_are_needed() -> None:
    """2,000 of states in each of eight learners and 700 of activations: neither change alone is enough for 2,700."""
    advice = remedy(sized(settings_of()), CUDA_DEVICE + 2_700)
    expected = "set model.gradient_checkpointing to True and learner_parallelism to fsdp and num_learners to 8, and the fullest"
    assert advice.startswith(expected)


def test_nothing_helps() -> None:
    advice = remedy(sized(settings_of()), CUDA_DEVICE)
    assert advice.endswith("makes it fit: take larger GPUs, or a smaller model")


def test_changes_of_a_gpu_that_both_share() -> None:
    shared = settings_of(num_gpus_per_learner=0.5, num_gpus_per_env_runner=0.5)
    found = list(changes(shared))
    assert found[0] == {"engine.sleep": True}
    assert not any("num_learners" in change or "engine.tensor_parallel_size" in change for change in found)


def test_keys_find_their_section() -> None:
    changed = with_keys(settings_of(), {"engine.sleep": True, "num_learners": 3, "learner_parallelism": "fsdp"})
    assert (changed.engine.sleep, changed.rllib.num_learners, changed.update.learner_parallelism) == (True, 3, "fsdp")
