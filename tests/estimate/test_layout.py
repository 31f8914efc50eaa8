"""Which process holds what, by hand: a tiny model in float32, engines in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.estimate.layout import Process, at_peak, peak, processes
from rapo_rllib.estimate.memory import Part, Parts, Shape

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
    return {process.name: process for process in processes(settings, SHAPE, device)}


def local(**keys: Any) -> Process:
    return found(**keys)["main with learner and engine"]


def named(parts: Parts, phase: str = "") -> dict[str, int]:
    return {part.name: part.num_bytes for part in parts if part.phase == phase and part.num_bytes}


def test_phases_take_turns() -> None:
    parts = (Part("a", 10), Part("b", 5, "update"), Part("c", 4, "sync"), Part("d", 3, "sync"))
    assert ([part.name for part in at_peak(parts)], peak(parts), peak(())) == (["a", "c", "d"], 17, 0)


def test_a_local_job_is_one_process_and_what_rllib_packed_stays() -> None:
    main = local()
    always = named(main.host)
    assert always["weights that RLlib packed at its start"] == always["engine: weights"] == 2 * PACKED
    assert (always["weights"], always["Adam's moments"]) == (4 * COUNT, 8 * COUNT)
    assert named(main.host, "sync") == {"weights as the engine has them": 4 * COUNT}
    assert named(main.host, "checkpoint") == {"weights packed for a checkpoint": 4 * PACKED}
    assert "weights in Ray's object store" not in always
    assert named(main.host, "update")["gradients"] == 4 * COUNT


@pytest.mark.parametrize(
    ("keys", "copies"),
    [
        ({"engine": {"dtype": "float32"}}, 0),
        ({"model": {"autocast_dtype": None, "lora": {}}}, 2),  # those that adapters are added to, and rounded ones
        ({"model": {"dtype": "bfloat16", "lora": {}}}, 1),
        ({"model": {"dtype": "bfloat16"}}, 0),
    ],
)
def test_copies_while_scoring_as_an_engine(keys: dict[str, Any], copies: int) -> None:
    main = local(**keys)
    weights = named(main.host)["weights"]
    assert sum(named(main.host, "sync").values()) == copies * weights


def test_a_reference_model_only_without_adapters() -> None:
    assert named(local(kl_coeff=0.1).host)["reference model"] == 4 * COUNT
    adapted = local(kl_coeff=0.1, model={"autocast_dtype": None, "lora": {"rank": 2}})
    assert "reference model" not in named(adapted.host)


def test_only_the_first_learner_sends_and_saves() -> None:
    """The packed weights are there twice: in its process, and in Ray's object store."""
    every = found(num_learners=3, num_env_runners=2, evaluation_num_env_runners=1)
    counts = {name: process.count for name, process in every.items()}
    assert counts == {"main": 1, "first learner": 1, "other learners": 2, "engine": 3, "the rllib command": 1, "Ray": 1}
    first, others = every["first learner"].host, every["other learners"].host
    assert sum(named(first, "checkpoint").values()) == 2 * 4 * PACKED
    assert named(others, "checkpoint") == {}
    assert named(first)["weights in Ray's object store"] == 2 * COUNT
    assert "weights in Ray's object store" not in named(others)


def test_shards_gather_while_they_compute() -> None:
    """Gathered: root and two layers, 88 + 2 * 496 elements, and gradients of one, in 4 bytes."""
    others = found(num_learners=2, num_env_runners=1, learner_parallelism="fsdp")["other learners"].host
    assert named(others)["weights"] == 2 * COUNT
    assert named(others, "update")["gathered weights"] == (1080 + 496) * 4
    assert named(others, "sync") == {"weights as the engine has them": 2 * COUNT}


@pytest.mark.parametrize(("backend", "shared"), [("auto", False), ("object_store", True), ("nccl", False)])
def test_weights_go_through_memory_but_with_vllms_own_transfer(backend: str, shared: bool) -> None:
    gpus = {"num_gpus_per_learner": 1, "num_gpus_per_env_runner": 1}
    learner = found(num_learners=1, num_env_runners=1, weight_transfer=backend, **gpus)["learner"]
    assert ("weights in Ray's object store" in named(learner.host)) is shared
    assert named(learner.host, "loading") == {"model, before it moves to the GPU": 4 * COUNT}
    assert named(learner.gpu)["weights"] == 4 * COUNT


def test_an_engine_on_a_gpu_fills_its_share() -> None:
    gpus = {"num_env_runners": 1, "num_gpus_per_env_runner": 1}
    engine = found(10**9, engine={"dtype": "bfloat16", "gpu_memory_utilization": 0.5}, **gpus)["engine"]
    assert peak(engine.gpu) == 5 * 10**8
    unknown = found(None, **gpus)["engine"]
    assert [part.name for part in unknown.gpu] == [
        "engine: weights",
        "engine: one step",
        "engine: keys and values, room for 1 of the longest trajectories",
    ]


def test_main_which_fills_the_buffer_embeds_as_well_as_engines_do() -> None:
    every = found(retrieval_prob=0.5, num_env_runners=1)
    assert "embedder" in named(every["main with learner"].host) and "embedder" in named(every["engine"].host)
    assert [part.name for part in local(retrieval_prob=0.5).host].count("embedder") == 1


def test_the_owner_of_a_lite_path_has_all_step_traces() -> None:
    """A thousand of the off-policy agents', and 10 of the policy's own; those on a server are not counted."""
    buffer = {"max_traces": 1000, "uri": "b.db", "max_grown": 10}
    owner = "owner of the Step-Trace Buffer"
    for growth, rows in (("none", 1000), ("successful", 1010)):
        every = found(retrieval_prob=0.5, buffer_growth=growth, step_trace_buffer=buffer)
        assert named(every[owner].host)["step traces"] == rows * 13312
    assert owner not in found(retrieval_prob=0.5, step_trace_buffer={**buffer, "uri": "http://localhost:19530"})
    assert set(found(step_trace_buffer=buffer)) == {"main with learner and engine", "the rllib command", "Ray"}
