"""Sums over processes, trials and GPUs."""

from __future__ import annotations

import pytest

from rapo_rllib.estimate.duration import Rates, passes_worth, rollout_seconds, update_seconds
from rapo_rllib.estimate.engine import Engine, computing_bytes, cpu_memory, engine_weight_bytes, gpu_memory
from rapo_rllib.estimate.fit import GIB, Fit, fits, gpu_fits, gpu_peaks, host_bytes, trials_at_once
from rapo_rllib.estimate.machine import Machine, this_machine
from rapo_rllib.estimate.parts import Memory, Part, Process
from rapo_rllib.estimate.shape import ModelShape
from rapo_rllib.estimate.tokens import Tokens, micro_batches
from rapo_rllib.settings import EngineSettings

SHAPE = ModelShape(1000, 1000, 0, 0, 400, 200, 300, True, 3, 2, 4, 8, 12, 10)


def process(host: int, count: int = 1, gpu: int | None = None, gpus: float = 0.0) -> Process:
    device = None if gpu is None else Memory((Part("x", gpu),))
    return Process("p" if gpus in (0, 1) else "part", count, Memory((Part("x", host),)), device, gpus)


def test_phases_take_turns() -> None:
    memory = Memory((Part("a", 10),), {"update": (Part("b", 5),), "sync": (Part("c", 4), Part("d", 3))})
    assert (memory.peak, memory.phase, [part.name for part in memory.parts]) == (17, "sync", ["a", "c", "d"])


def gpu_peak(processes: list[Process]) -> int:
    return max(gpu_peaks(processes).values())


def test_every_trial_counts_and_what_runs_once_does_once() -> None:
    assert host_bytes([process(5, count=3), process(2)], [process(7)], trials=2) == 2 * 17 + 7


@pytest.mark.parametrize(
    ("number", "needed", "expected"),
    [(4, {"CPU": 2, "GPU": 0}, 3), (2, {"CPU": 2}, 2), (4, {"CPU": 1, "GPU": 1}, 2), (4, {"CPU": 9}, 1)],
)
def test_trials_that_run_at_once(number: int, needed: dict[str, float], expected: int) -> None:
    assert trials_at_once(number, needed, cores=6, gpus=2) == expected


def test_processes_with_a_fraction_of_a_gpu_share_it() -> None:
    assert gpu_peak([process(0, gpu=30, gpus=0.5), process(0, gpu=20, gpus=0.5), process(0, gpu=40, gpus=1)]) == 50
    assert gpu_peak([process(0, gpu=30, gpus=0.5), process(0, gpu=40, gpus=1)]) == 40


def test_as_many_share_a_gpu_as_there_is_room_for() -> None:
    assert gpu_peak([process(0, count=2, gpu=30, gpus=0.5)]) == 60
    assert gpu_peak([process(0, count=3, gpu=30, gpus=0.5), process(0, count=3, gpu=20, gpus=0.5)]) == 50
    assert gpu_peak([process(0, count=2, gpu=30, gpus=0.25), process(0, gpu=20, gpus=0.5)]) == 80
    assert gpu_peak([process(0, count=1, gpu=30, gpus=0.25), process(0, count=2, gpu=20, gpus=0.25)]) == 70


def test_an_engine_that_sleeps_leaves_the_update_its_memory() -> None:
    """Learner: 30, 40 more in an update, 10 in a sync. Engine: 50. Awake: 30 + 40 + 50; asleep: 30 + 50 + 10 in the sync."""
    learner = Memory((Part("states", 30),), {"update": (Part("activations", 40),), "sync": (Part("copy", 10),)})
    engine = Engine(weights=1, kv_per_token=1, computing=1, longest=1)  # of 50 bytes 48 are for keys and values
    for sleep, expected in ((False, 120), (True, 90)):
        settings = EngineSettings(sleep=sleep, gpu_memory_utilization=0.5)
        other = gpu_memory(engine, settings, 100)
        found = [Process("learner", 1, Memory(), learner, 0.5), Process("engine", 1, Memory(), other, 0.5)]
        assert gpu_peak(found) == expected


def test_memory_side_by_side() -> None:
    one = Memory((Part("a", 1),), {"x": (Part("b", 2),)})
    both = one.beside(Memory((Part("c", 4),), {"x": (Part("d", 8),), "y": (Part("e", 16),)}))
    assert [both.during(phase) for phase in ("x", "y", "z")] == [15, 21, 5]


def test_verdicts() -> None:
    machine, gpu_bytes = Machine(20 * GIB, 20 * GIB, 2, (80 * GIB,)), 80 * GIB
    (host,) = fits([process(15 * GIB)], [], 1, machine, True, gpu_bytes)
    assert str(host) == "fits: memory of this machine: needs 15 GiB, 20 GiB there"
    close = fits([process(19 * GIB)], [], 1, machine, True, gpu_bytes)[0]
    assert close.fits
    assert "closer than this estimate's error" in str(close)
    host, gpus, gpu = fits([process(21 * GIB, count=2, gpu=90 * GIB, gpus=1)], [], 1, machine, True, gpu_bytes)
    assert str(host) == "does not fit: memory of this machine: needs 42 GiB, 20 GiB there"
    assert str(gpus) == "does not fit: GPUs: needs 2 GPUs, 1 GPUs there"
    assert str(gpu) == "does not fit: memory of a GPU of: p: needs 90 GiB, 80 GiB there"
    assert {fit.fits for fit in fits([process(1, gpu=1, gpus=1)], [], 1, machine, False, None)} == {None}
    elsewhere = fits([process(1, gpu=1, gpus=1)], [], 1, machine, False, gpu_bytes)
    assert [fit.fits for fit in elsewhere] == [None, None, True]  # memory and number of the other machines are not known
    assert str(Fit("x", GIB, None)) == "x: needs 1 GiB; what there is, is not known from here"


def test_this_machine_has_memory_and_cores() -> None:
    machine = this_machine()
    assert machine.free_bytes <= machine.host_bytes
    assert machine.cores >= 1


def test_an_engine_on_a_cpu_packs_a_tied_head_twice() -> None:
    assert engine_weight_bytes(SHAPE, 4, on_gpu=False) == 1300 * 4
    assert engine_weight_bytes(SHAPE, 2, on_gpu=True) == 2000


def test_an_engine_by_hand() -> None:
    """2,048 tokens of 4 * 8 + 3 * 12 = 68 elements in 2 bytes, and logits of 5 sequences, 10 words, three times in float32."""
    settings = EngineSettings(max_num_seqs=5, kv_cache_gib=0.5, gpu_memory_utilization=0.5)
    assert computing_bytes(SHAPE, 2, settings) == 2048 * 68 * 2 + 600
    engine = Engine(weights=100, kv_per_token=2, computing=50, longest=10)
    assert cpu_memory(engine, settings).peak == 100 + 2**29 + 50
    assert gpu_memory(engine, settings, 1000).peak == 500
    assert gpu_memory(engine, settings, None).peak == 100 + 20 + 50
    assert engine.least == 170
    assert engine.sequences(500) == (500 - 150) // 20
    names = {part.name: part.num_bytes for part in gpu_memory(engine, settings, 1000).parts}
    assert names["engine: keys and values, room for 17 of the longest trajectories"] == 350


def test_an_engine_that_has_no_room_for_one_trajectory_does_not_fit_its_share() -> None:
    """It needs 170 bytes: half of 300 is too little for vLLM, though a GPU of 300 would hold it."""
    engine = Engine(weights=100, kv_per_token=2, computing=50, longest=10)
    for device, expected in ((300, [True, False]), (340, [True, True])):
        memory = gpu_memory(engine, EngineSettings(gpu_memory_utilization=0.5), device)
        assert memory.peak == 170
        found = gpu_fits([Process("engine", 1, Memory(), memory, 1, engine.least, 0.5)], device)
        assert [fit.fits for fit in found] == expected


def test_micro_batches_of_a_step() -> None:
    """300 tokens over 2 learners and 1 step: 150 each, rows of 60: 3; longer trajectories make longer rows."""
    tokens = Tokens(questions=2, trajectories=8, prompt=60, response=240, longest=60)
    assert micro_batches(tokens, 60, learners=2, minibatches=1) == 3
    assert micro_batches(tokens, 10, learners=2, minibatches=1) == 3
    assert micro_batches(tokens, 1000, learners=1, minibatches=2) == 1


def test_seconds_by_hand() -> None:
    assert update_seconds(100, 10, 3, 12_000) == 1.0
    assert [passes_worth(way, lora) for way in (False, "selective", True) for lora in (False, True)] == [3, 2, 3, 2, 4, 3]
    rates = Rates(operations=1, engine_operations=1000, bytes_read=100)
    # 5 steps of 4 sequences: 50 bytes at 100 a second, 2 * 10 * 4 operations at 200; then 2 * 10 * 5 of prompts
    assert rollout_seconds(10, 50, generated=20, prompt=5, batch=4, rates=rates) == pytest.approx(5 * (0.5 + 0.4) + 0.5)
