"""Which process holds what, by hand: a tiny model in float32, engines in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.estimate.layout import Process, at_peak, job_of, peak, processes, shared
from rapo_rllib.estimate.memory import Part, Parts
from rapo_rllib.estimate.shape import Shape

SHAPE = Shape(hidden=8, intermediate=12, layers=3, heads=4, kv_heads=2, head_dim=2, vocabulary=10, tied=True)
COUNT, PACKED = 1576, 1656  # parameters; with the tied head once more
KEYS: dict[str, Any] = {
    "retrieval_prob": 0,
    "questions_per_step": 4,
    "model": {"autocast_dtype": None},
    "engine": {"dtype": "bfloat16"},
}


def found(device: int | None = None, **keys: Any) -> dict[str, Process]:
    settings = RAPOConfig().update_from_dict({**KEYS, **keys}).settings
    return {process.name: process for process in processes(job_of(settings, SHAPE), device)}


def named(parts: Parts, phase: str = "") -> dict[str, int]:
    return {part.name: part.num_bytes for part in parts if part.phase == phase and part.num_bytes}


def test_phases_take_turns() -> None:
    parts = (Part("a", 10), Part("b", 5, "update"), Part("c", 4, "sync"), Part("d", 3, "sync"))
    assert ([part.name for part in at_peak(parts)], peak(parts), peak(())) == (["a", "c", "d"], 17, 0)


def test_a_local_job_is_one_process_and_what_rllib_packed_stays() -> None:
    (main,) = found().values()
    always = named(main.host)
    assert main.name == "main with learner and engine"
    assert always["weights that RLlib packed at its start"] == always["engine: weights"] == 2 * PACKED
    assert (always["weights"], always["Adam's moments"]) == (4 * COUNT, 8 * COUNT)
    assert named(main.host, "sync") == {"weights rounded as the engine's": 4 * COUNT}
    assert named(main.host, "checkpoint") == {"weights packed for a checkpoint": 4 * PACKED}
    assert "weights in shared memory" not in always
    assert named(main.host, "backward")["gradients"] == 4 * COUNT


def test_one_micro_batch_a_step_has_no_gradients_before() -> None:
    (main,) = found(max_tokens_per_micro_batch=10**6).values()
    assert "gradients" not in named(main.host, "backward")
    assert named(main.host, "first layer")["gradients"] == 4 * COUNT


def test_an_engine_of_the_same_dtype_needs_no_rounded_copy() -> None:
    (main,) = found(engine={"dtype": "float32"}).values()
    assert named(main.host, "sync") == {}


def test_a_reference_model_only_without_adapters() -> None:
    assert named(found(kl_coeff=0.1)["main with learner and engine"].host)["reference model"] == 4 * COUNT
    adapted = found(kl_coeff=0.1, model={"autocast_dtype": None, "lora": {"rank": 2}})
    assert "reference model" not in named(adapted["main with learner and engine"].host)


def test_only_the_first_learner_sends_and_saves() -> None:
    """The packed weights are there twice: in its process, and in Ray's object store."""
    every = found(num_learners=3, num_env_runners=2)
    counts = {name: process.count for name, process in every.items()}
    assert counts == {"main": 1, "first learner": 1, "other learners": 2, "engine": 2}
    first, others = every["first learner"].host, every["other learners"].host
    assert sum(named(first, "checkpoint").values()) == 2 * 4 * PACKED
    assert named(others, "checkpoint") == {}
    assert named(first)["weights in shared memory"] == 2 * COUNT
    assert "weights in shared memory" not in named(others)


def test_shards_gather_while_they_compute() -> None:
    """Gathered: root and two layers, 88 + 2 * 496 elements, twice, in 4 bytes."""
    others = found(num_learners=2, num_env_runners=1, learner_parallelism="fsdp")["other learners"].host
    assert named(others)["weights"] == 2 * COUNT
    for phase in ("forward", "head", "backward", "first layer"):
        assert named(others, phase)["gathered weights"] == 1080 * 8
    assert named(others, "sync") == {"weights rounded as the engine's": 2 * COUNT}


@pytest.mark.parametrize(("backend", "shared"), [("auto", False), ("object_store", True), ("nccl", False)])
def test_weights_go_through_memory_but_with_vllms_own_transfer(backend: str, shared: bool) -> None:
    gpus = {"num_gpus_per_learner": 1, "num_gpus_per_env_runner": 1}
    learner = found(num_learners=1, num_env_runners=1, weight_transfer=backend, **gpus)["learner"]
    assert ("weights in shared memory" in named(learner.host)) is shared
    assert named(learner.host, "loading") == {"model, before it moves to the GPU": 4 * COUNT}
    assert named(learner.gpu)["weights"] == 4 * COUNT


def test_an_engine_on_a_gpu_fills_its_share() -> None:
    gpus = {"num_env_runners": 1, "num_gpus_per_env_runner": 1}
    engine = found(10**9, engine={"dtype": "bfloat16", "gpu_memory_utilization": 0.5}, **gpus)["engine"]
    assert peak(engine.gpu) == 5 * 10**8
    unknown = found(None, **gpus)["engine"]
    assert [part.name for part in unknown.gpu] == [
        "engine: weights",
        "engine: keys and values, of one longest trajectory",
        "engine: one step",
    ]


def test_an_engine_that_sleeps_leaves_the_update_its_memory() -> None:
    gpus = {"num_gpus_per_learner": 0.5, "num_gpus_per_env_runner": 0.5, "num_learners": 1, "num_env_runners": 1}
    engine = found(10**9, engine={"dtype": "bfloat16", "sleep": True}, **gpus)["engine"]
    assert {part.phase for part in engine.gpu} == {"rollout", "sync"}


def sharing(trials: int = 1, **keys: Any) -> dict[str, Process]:
    settings = RAPOConfig().update_from_dict({**KEYS, **keys}).settings
    return {process.name: process for process in shared(job_of(settings, SHAPE), trials)}


def test_main_which_fills_the_buffer_embeds_as_well_as_engines_do() -> None:
    every = found(retrieval_prob=0.5, num_env_runners=1)
    assert "embedder" in named(every["main with learner"].host) and "embedder" in named(every["engine"].host)
    (local,) = found(retrieval_prob=0.5).values()
    assert [part.name for part in local.host].count("embedder") == 1


def test_the_owner_of_a_lite_path_has_the_step_traces_of_all_trials() -> None:
    """1,000 of the off-policy agents' once, and 10 of its own of each of three trials."""
    buffer = {"max_traces": 1000, "uri": "b.db"}
    growing = {"buffer_growth": "successful", "step_trace_buffer": {**buffer, "max_grown": 10}}
    owner = "owner of the Step-Trace Buffer"
    assert named(sharing(retrieval_prob=0.5, step_trace_buffer=buffer)[owner].host)["step traces"] == 1000 * 13312
    assert named(sharing(3, retrieval_prob=0.5, **growing)[owner].host)["step traces"] == 1030 * 13312


def test_a_server_is_not_counted_and_without_retrieval_there_is_no_owner() -> None:
    elsewhere = {"uri": "http://localhost:19530", "max_traces": 1000}
    for keys in ({"retrieval_prob": 0.5, "step_trace_buffer": elsewhere}, {"step_trace_buffer": {"max_traces": 1000}}):
        assert set(sharing(**keys)) == {"the rllib command", "Ray"}
