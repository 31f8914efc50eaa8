"""Verdicts, and what to change in a job that does not fit its GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.estimate.fit import GIB, Fit, Machine, changes, fits, gpu_fits, host_bytes, remedy, this_machine, with_keys
from rapo_rllib.estimate.layout import ALWAYS, Job, job_of, peak, processes
from rapo_rllib.estimate.shape import Shape
from rapo_rllib.settings import Settings

SHAPE = Shape(1536, 8960, 28, 12, 2, 128, 151936, True)  # Qwen2.5-1.5B
GPUS = {"num_learners": 1, "num_gpus_per_learner": 1, "num_env_runners": 1, "num_gpus_per_env_runner": 1}
HALVES = {**GPUS, "num_gpus_per_learner": 0.5, "num_gpus_per_env_runner": 0.5}
KEYS: dict[str, Any] = {
    "retrieval_prob": 0,
    "questions_per_step": 16,
    "model": {"autocast_dtype": None},
    "engine": {"dtype": "bfloat16", "gpu_memory_utilization": 0.5},
    "max_tokens_per_micro_batch": 16384,
    "max_prompt_tokens": 512,
    "max_response_tokens": 1536,
}


def settings_of(**keys: Any) -> Settings:
    return RAPOConfig().update_from_dict({**KEYS, **keys}).settings


def sized(**keys: Any) -> Job:
    return job_of(settings_of(**keys), SHAPE)


@pytest.mark.parametrize(
    ("fit", "text"),
    [
        (Fit("x", 15 * GIB, 20 * GIB), "fits: x: needs 15 GiB, 20 GiB there"),
        (Fit("x", 19 * GIB, 20 * GIB), "fits, but closer than this estimate's error: x: needs 19 GiB, 20 GiB there"),
        (Fit("x", 42 * GIB, 20 * GIB, remedy="less"), "does not fit: x: needs 42 GiB, 20 GiB there; less"),
        (Fit("GPUs", 2, 1, "GPUs"), "does not fit: GPUs: needs 2 GPUs, 1 GPUs there"),
        (Fit("x", GIB, None), "x: needs 1 GiB; what there is, is not known from here"),
    ],
)
def test_verdicts(fit: Fit, text: str) -> None:
    assert str(fit) == text


def test_every_trial_counts_and_what_runs_once_does_once() -> None:
    job = sized(num_env_runners=3)
    each = sum(one.count * peak(one.host) for one in processes(job, None))
    assert host_bytes(job, 2) == 2 * each + sum(peak(one.host) for one in ALWAYS)


def test_a_job_on_a_machine() -> None:
    verdicts = fits(sized(**GPUS), 2, Machine(10**12, 80 * GIB, 2))
    assert [(fit.where, fit.fits) for fit in verdicts] == [
        ("memory of all processes", True),
        ("GPUs", False),  # of four
        ("memory of a GPU of: learner", False),
        ("memory of a GPU of: engine", True),
    ]
    assert verdicts[2].remedy.startswith("set model.gradient_checkpointing to ")
    assert {fit.fits for fit in fits(sized(**GPUS), 1, Machine(None, None, None))} == {None}
    (host,) = fits(sized(), 1, Machine(GIB, None, 0))
    assert host.fits is False


def test_processes_with_a_fraction_of_a_gpu_share_it() -> None:
    job = sized(**HALVES)
    _, learner, engine = processes(job, 80 * GIB)
    shared = gpu_fits(job, 80 * GIB)[0]
    assert shared.where == "memory of a GPU of: learner and engine"
    assert shared.needed == peak((*learner.gpu, *engine.gpu)) > peak(learner.gpu)
    (alone,) = gpu_fits(sized(num_learners=2, num_gpus_per_learner=0.5, num_env_runners=1), 80 * GIB)
    assert alone.needed == pytest.approx(2 * peak(learner.gpu), rel=0.1)


def test_an_engine_that_sleeps_is_not_beside_the_update() -> None:
    awake, asleep = (
        gpu_fits(sized(**HALVES, engine={**KEYS["engine"], "sleep": sleep}), 80 * GIB)[0] for sleep in (False, True)
    )
    assert asleep.needed < awake.needed


def test_an_engine_that_has_no_room_for_one_trajectory_does_not_fit_its_share() -> None:
    """Its share is a half: a GPU of 1.9 times what the engine needs would hold it, but the share does not."""
    job = sized(num_env_runners=1, num_gpus_per_env_runner=1)
    least = job.engine.weights + job.engine.step + job.engine.kv_per_token * job.engine.longest
    small, large = (gpu_fits(job, int(factor * least))[0] for factor in (1.9, 2.1))
    assert (small.fits, small.needed, large.fits) == (False, 2 * least, True)


@pytest.mark.parametrize(
    ("gib", "advice"),
    [
        (70, "set model.gradient_checkpointing to True, and the fullest GPU holds "),
        (30, "set model.gradient_checkpointing to True and max_tokens_per_micro_batch to 2048, and the"),
        (1, "nothing that is known here makes it fit"),
    ],
)
def test_the_fewest_changes_and_the_least_loss_come_first(gib: int, advice: str) -> None:
    assert remedy(sized(**GPUS), gib * GIB).startswith(advice)


def test_changes_of_a_gpu_that_both_share() -> None:
    found = changes(settings_of(**HALVES))
    assert found[0] == {"engine.sleep": True}
    assert not any("num_learners" in change or "engine.tensor_parallel_size" in change for change in found)
    assert changes(settings_of()) == []


def test_keys_find_their_section() -> None:
    changed = with_keys(settings_of(), {"engine.sleep": True, "num_learners": 3, "learner_parallelism": "fsdp"})
    assert (changed.engine.sleep, changed.rllib.num_learners, changed.update.learner_parallelism) == (True, 3, "fsdp")


def test_this_machine_has_memory() -> None:
    machine = this_machine()
    assert machine.host_bytes and machine.host_bytes > GIB
    assert (machine.gpu_bytes is None) is (machine.gpus == 0)
