"""Jobs with GPUs on a real Ray that believes in four of them: where they are placed, and what they say if PyTorch has none."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from places import SUPPORT
from tiny_models import save_tiny_model

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPUs must be no real ones"),
    pytest.mark.slow,  # 25 s; in short: tests/config/test_gpus.py, tests/models/test_devices.py
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny"), head_dim=32)
    command = [sys.executable, str(SUPPORT / "fake_gpus.py"), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.strip().splitlines()[-1])


def test_an_engine_and_a_learner_with_half_a_gpu_each_share_one(found: dict[str, Any]) -> None:
    (engine,), (learner,) = found["shared"]
    assert engine == learner


def test_an_engine_with_two_gpus_starts_its_workers_itself(found: dict[str, Any]) -> None:
    assert found["two_workers"] == "mp"  # by "ray" it would ask for bundles of one GPU


@pytest.mark.parametrize("who, key", [("engine", "num_gpus_per_env_runner"), ("learner", "num_gpus_per_learner")])
def test_a_gpu_that_pytorch_cannot_use_is_said_so(found: dict[str, Any], who: str, key: str) -> None:
    assert f"{key} = 1, but there is no usable GPU on" in found["without_cuda"][who]
