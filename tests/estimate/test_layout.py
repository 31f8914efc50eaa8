"""Which process holds what, by hand: a model of 1,000 parameters in float32, engines in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.estimate.engine import engine_of
from rapo_rllib.estimate.layout import Job, processes
from rapo_rllib.estimate.micro_batch import MicroBatch
from rapo_rllib.estimate.parts import Memory, Process, total
from rapo_rllib.estimate.shape import ModelShape
from rapo_rllib.estimate.states import learner_states
from rapo_rllib.estimate.tokens import tokens_per_iteration
from rapo_rllib.settings import Settings

SHAPE = ModelShape(1000, 1000, 0, 0, 400, 200, 300, True, 3, 2, 4, 8, 12, 10)
PASSES = MicroBatch(first=4500, later=700)  # first: 4,000 of gradients and 500
KEYS = {"retrieval_prob": 0, "questions_per_step": 4, "model": {"autocast_dtype": None}, "engine": {"dtype": "bfloat16"}}


def settings_of(**keys: Any) -> Settings:
    return RAPOConfig().update_from_dict({**KEYS, **keys}).settings


def job_of(settings: Settings) -> Job:
    tokens = tokens_per_iteration(settings)
    update, learners = settings.update, max(1, settings.rllib.num_learners)
    states = learner_states(SHAPE, settings.model, learners if update.learner_parallelism == "fsdp" else 1)
    engine = engine_of(SHAPE, settings.engine, tokens.longest, bool(settings.rllib.num_gpus_per_env_runner))
    return Job(settings, SHAPE, states, PASSES, engine, tokens, update.max_tokens_per_micro_batch)


def found(**keys: Any) -> dict[str, Process]:
    return {process.name: process for process in processes(job_of(settings_of(**keys)), None)}


def phases(memory: Memory | None) -> dict[str, int]:
    assert memory is not None
    return {name: total(parts) for name, parts in memory.phases.items()}


def test_a_local_job_is_one_process_and_what_rllib_packed_stays() -> None:
    """Sync: float32 weights rounded to bfloat16, 4,000; checkpoint: with the head of 300, 5,200. The engine takes 2 bytes."""
    (main,) = found().values()
    sizes = {part.name: part.num_bytes for part in main.host.always}
    assert sizes["weights that RLlib packed at its start"] == sizes["engine: weights"] == 2 * 1300
    assert {name: phases(main.host)[name] for name in ("update", "sync", "checkpoint")} == {
        "update": 4000 + 700,
        "sync": 4000,
        "checkpoint": 5200,
    }


def test_one_micro_batch_a_step_has_no_gradients_before() -> None:
    (main,) = found(max_tokens_per_micro_batch=10**6).values()
    assert phases(main.host)["update"] == 4000 + 500


def test_an_engine_of_the_same_dtype_needs_no_rounded_copy() -> None:
    (main,) = found(engine={"dtype": "float32"}).values()
    assert "sync" not in phases(main.host)


def test_only_the_first_learner_sends_and_saves() -> None:
    """The packed weights are there twice: in its process, and in Ray's object store."""
    every = found(num_learners=3, num_env_runners=2)
    assert {name: process.count for name, process in every.items()} == {
        "main": 1,
        "first learner": 1,
        "other learners": 2,
        "engine": 2,
    }
    first, others = every["first learner"].host, every["other learners"].host
    assert phases(first)["checkpoint"] == 2 * 5200
    assert "checkpoint" not in phases(others)
    assert total(first.always) - total(others.always) == 2000  # in shared memory, bfloat16


def test_shards_gather_while_they_compute() -> None:
    """2,000 of gradients, 700 of activations; gathered: root and two layers, 400 + 2 * 200 elements, twice, in 4 bytes."""
    others = found(num_learners=2, num_env_runners=1, learner_parallelism="fsdp")["other learners"].host
    assert phases(others)["update"] == 2000 + 700 + 800 * 8
    assert phases(others)["sync"] == 2000


@pytest.mark.parametrize(("backend", "shared"), [("auto", False), ("object_store", True), ("nccl", False)])
def test_weights_go_through_memory_but_with_vllms_own_transfer(backend: str, shared: bool) -> None:
    gpus = {"num_gpus_per_learner": 1, "num_gpus_per_env_runner": 1}
    learner = found(num_learners=1, num_env_runners=1, weight_transfer=backend, **gpus)["learner"]
    assert ("weights in shared memory" in [part.name for part in learner.host.always]) is shared
    assert phases(learner.host) == {"loading": 4000}
    assert phases(learner.gpu) == {"update": 4000 + 700, "sync": 4000}
