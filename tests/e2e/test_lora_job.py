"""A job with LoRA: only adapters travel, the engine follows them, the canary sees if it does not, and exports load again.

In this process, later with one env runner in another; and with that alone, which is restarted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from jobs import at, small_config

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.learner.adapters import Adapters
from rapo_rllib.weights.sync import WeightSync

pytestmark = pytest.mark.e2e

RANK = 8
IDS = [1, 2, 3, 40, 500, 6000, 7, 8]


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=pytest.mark.slow)], ids="{} env runners".format)
def algorithm(request: pytest.FixtureRequest, ray_session: None, small_model: str) -> Iterator[Any]:
    config = small_config(small_model)
    config.language_model = {**config.language_model, "lora": {"rank": RANK, "alpha": 16}}
    config.engine = {**config.engine, "kv_cache_gib": 0.1}
    algorithm = config.training(kl_coeff=0.01).env_runners(num_env_runners=request.param).build_algo()
    yield algorithm
    algorithm.stop()


def adapters(algorithm: Any) -> Adapters:
    found: Adapters = algorithm.get_module().adapters
    return found


@torch.no_grad()
def move(algorithm: Any) -> None:
    """What updates do to the adapters, only more of it, and RLlib to their version."""
    generator = torch.Generator().manual_seed(0)
    for tensor in adapters(algorithm).tensors().values():
        tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    algorithm.learner_group._learner._weights_seq_no += 1


def on_the_engine(algorithm: Any, function: Any) -> Any:
    """What ``function`` returns of the env runner that samples."""
    group = algorithm.env_runner_group
    (result,) = group.foreach_env_runner(function, local_env_runner=not group.num_remote_env_runners())
    return result


def scores(algorithm: Any) -> list[float]:
    found: list[float] = on_the_engine(algorithm, lambda runner: runner.engine.score([IDS])[0])
    return found


def test_a_step_trains_and_sends_adapters_alone(algorithm: Any) -> None:
    before = {name: value.clone() for name, value in algorithm.get_module().language_model.state_dict().items()}
    result = algorithm.train()
    num_bytes = sum(4 * tensor.numel() for tensor in adapters(algorithm).tensors().values())
    assert at(result, "sync/mebibytes") == pytest.approx(num_bytes / 2**20) and num_bytes < 10 * 2**20
    assert at(result, "sync/canary_mean") < 1e-3 and at(result, "sync/weight_version") == 1
    assert at(result, "learners/default_policy/mismatch") < 0.01
    assert at(result, "learners/default_policy/kl") == pytest.approx(0.0, abs=1e-6)  # the first step is taken at the reference
    after = algorithm.get_module().language_model.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved and all("lora_" in name for name in moved)


def follows(algorithm: Any) -> None:
    """After adapters went far from zero, the engine computes what the learner does."""
    held = scores(algorithm)
    move(algorithm)
    sync = WeightSync(algorithm._weight_sync.canary)
    report = sync.run(algorithm.learner_group, algorithm.env_runner_group)
    assert report.mean_difference < 1e-3 and report.learner_moved > 0.05 and report.engine_missed < 1e-3
    with torch.no_grad():
        logits = algorithm.get_module().language_model(torch.tensor([IDS])).logits[0, :-1]
    expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(IDS)[1:, None])[:, 0]
    assert scores(algorithm) == pytest.approx(expected.tolist(), abs=2e-3)
    assert sum(abs(a - b) for a, b in zip(held, scores(algorithm), strict=True)) / len(held) > 0.05


def test_the_engine_follows_adapters_far_from_zero(algorithm: Any) -> None:
    follows(algorithm)


@pytest.fixture(scope="module")
def remote(algorithm: Any) -> Any:
    """The job with an env runner in another process: its own, or one that is added, and is the one that is synced from here."""
    group = algorithm.env_runner_group
    if not group.num_remote_env_runners():
        group.add_workers(1, validate=True)
    algorithm.sync_engines()
    return algorithm


def test_an_engine_in_another_process_follows_them(remote: Any) -> None:
    assert on_the_engine(remote, lambda runner: os.getpid()) != os.getpid()
    follows(remote)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [1], indirect=True)
def test_a_restarted_engine_gets_the_current_adapters(algorithm: Any) -> None:
    expected, group = scores(algorithm), algorithm.env_runner_group
    ray.kill(group._worker_manager.actors()[1], no_restart=False)
    restored, deadline = [], time.monotonic() + 240
    while not restored and time.monotonic() < deadline:
        group.foreach_env_runner(lambda runner: None, local_env_runner=False, timeout_seconds=5)  # finds it dead
        restored = algorithm.restore_env_runners(group)
        time.sleep(1)
    assert restored == [1]
    assert scores(algorithm) == pytest.approx(expected, abs=1e-4)


def test_an_engine_without_the_adapters_is_caught(algorithm: Any) -> None:
    def drop_adapters(runner: Any) -> None:
        load = runner.engine.weights.load
        runner.engine.weights.load = lambda source, version: load({}, version)

    def load_again(runner: Any) -> None:
        del runner.engine.weights.load

    move(algorithm)
    on_the_engine(algorithm, drop_adapters)
    with pytest.raises(WeightSyncError, match="stale or partial"):
        algorithm.sync_engines()
    on_the_engine(algorithm, load_again)
    assert algorithm.sync_engines().mean_difference < 1e-3


@torch.no_grad()
def test_both_exports_compute_what_the_engine_does(algorithm: Any, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged = AutoModelForCausalLM.from_pretrained(algorithm.export_policy(tmp_path / "merged"), dtype=torch.float32)
    folder = algorithm.export_policy(tmp_path / "adapters", merged=False)
    assert sum(file.stat().st_size for file in folder.glob("*.safetensors")) < 10 * 2**20
    base = AutoModelForCausalLM.from_pretrained(_base(folder), dtype=torch.float32)
    for model in (merged, PeftModel.from_pretrained(base, folder)):
        log_p = torch.log_softmax(model(torch.tensor([IDS])).logits[0, :-1], -1)
        assert log_p.gather(-1, torch.tensor(IDS)[1:, None])[:, 0].tolist() == pytest.approx(scores(algorithm), abs=2e-3)


def _base(folder: Path) -> str:
    from peft import PeftConfig

    return str(PeftConfig.from_pretrained(folder).base_model_name_or_path)
