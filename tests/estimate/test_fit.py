"""Verdicts on jobs and machines."""

from __future__ import annotations

from typing import Any

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.estimate.layout import ADVICE, GIB, Machine, fits, peak, processes, this_machine, verdict
from rapo_rllib.estimate.memory import Shape, engine_bytes
from rapo_rllib.settings import Settings

SHAPE = Shape(1536, 8960, 28, 12, 2, 128, 151936, True)  # Qwen2.5-1.5B
GPUS = {"num_learners": 1, "num_gpus_per_learner": 1, "num_env_runners": 1, "num_gpus_per_env_runner": 1}
HALVES = {**GPUS, "num_gpus_per_learner": 0.5, "num_gpus_per_env_runner": 0.5}
KEYS: dict[str, Any] = {
    "retrieval_prob": 0,
    "questions_per_step": 16,
    "model": {"dtype": "float32", "autocast_dtype": None},
    "engine": {"dtype": "bfloat16", "gpu_memory_utilization": 0.5},
    "max_tokens_per_micro_batch": 16384,
    "max_prompt_tokens": 512,
    "max_response_tokens": 1536,
}


def sized(**keys: Any) -> Settings:
    return RAPOConfig().update_from_dict({**KEYS, **keys}).settings


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("x", 15 * GIB, 20 * GIB), "fits: x: needs 15 GiB, 20 GiB there"),
        (("x", 19 * GIB, 20 * GIB), "fits, but closer than this estimate's error: x: needs 19 GiB, 20 GiB there"),
        (("GPU of: x", 42 * GIB, 20 * GIB), f"does not fit: GPU of: x: needs 42 GiB, 20 GiB there{ADVICE}"),
        (("GPUs", 2, 1, "GPUs"), "does not fit: GPUs: needs 2 GPUs, 1 GPUs there"),
        (("x", GIB, None), "x: needs 1 GiB; what there is, is not known from here"),
    ],
)
def test_verdicts(given: tuple[Any, ...], text: str) -> None:
    assert verdict(*given)["text"] == text


def verdicts(settings: Settings, machine: Machine) -> list[dict[str, Any]]:
    return fits(processes(settings, SHAPE, machine.gpu_bytes), machine)


def on_gpu(settings: Settings, device: int) -> dict[str, Any]:
    return verdicts(settings, Machine(None, device, None))[-1]


def test_a_job_on_a_machine() -> None:
    found = verdicts(sized(**GPUS), Machine(10**12, 80 * GIB, 1))
    assert [(fit["where"], fit["fits"]) for fit in found] == [
        ("memory of all processes", True),
        ("GPUs", False),  # of two
        ("memory of a GPU of: learner", False),
        ("memory of a GPU of: engine", True),
    ]
    assert {fit["fits"] for fit in verdicts(sized(**GPUS), Machine(None, None, None))} == {None}
    (host,) = verdicts(sized(), Machine(GIB, None, 0))
    assert host["fits"] is False
    assert host["needed"] == sum(one.count * peak(one.host) for one in processes(sized(), SHAPE, None))


def test_processes_with_a_fraction_of_a_gpu_share_it() -> None:
    _, learner, engine, *_ = processes(sized(**HALVES), SHAPE, 80 * GIB)
    shared = on_gpu(sized(**HALVES), 80 * GIB)
    assert shared["where"] == "memory of a GPU of: learner and engine"
    assert shared["needed"] == peak((*learner.gpu, *engine.gpu)) > peak(learner.gpu)
    engines = sized(num_learners=1, num_env_runners=3, num_gpus_per_env_runner=0.5)
    assert on_gpu(engines, 80 * GIB)["needed"] == 2 * peak(engine.gpu)
    more = sized(**{**HALVES, "num_env_runners": 3})  # one learner and one engine, then no room is left
    assert on_gpu(more, 80 * GIB)["needed"] == shared["needed"]


@pytest.mark.parametrize("share", [0.5, 1])
def test_a_process_asks_for_its_gpu_once(share: float) -> None:
    from ray.rllib.algorithms.utils import _get_main_process_bundle

    local = {"num_learners": 0, "num_env_runners": 0, "num_gpus_per_learner": share, "num_gpus_per_env_runner": share}
    (gpus,) = (fit for fit in verdicts(sized(**local), Machine(None, 80 * GIB, 1)) if fit["where"] == "GPUs")
    assert gpus["needed"] == share == _get_main_process_bundle(RAPOConfig().update_from_dict(local))["GPU"]


def test_an_engine_that_sleeps_is_not_beside_the_update() -> None:
    awake, asleep = (on_gpu(sized(**HALVES, engine={**KEYS["engine"], "sleep": sleep}), 80 * GIB) for sleep in (False, True))
    assert asleep["needed"] < awake["needed"]


def test_an_engine_that_has_no_room_for_one_trajectory_does_not_fit_its_share() -> None:
    """Its share is a half: a GPU of 1.9 times what the engine needs would hold it, but the share does not."""
    job = sized(num_env_runners=1, num_gpus_per_env_runner=1)
    weights, step, token = engine_bytes(SHAPE, job)
    least = weights + step + token * (512 + 1536)
    small, large = (on_gpu(job, int(factor * least)) for factor in (1.9, 2.1))
    assert (small["fits"], small["needed"], large["fits"]) == (False, 2 * least, True)


def test_this_machine_has_memory() -> None:
    machine = this_machine()
    assert machine.host_bytes and machine.host_bytes > GIB
    assert (machine.gpu_bytes is None) is (machine.gpus == 0)
