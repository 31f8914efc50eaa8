"""The engine with its workers in processes of their own: the same numbers, and weights that arrive."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from tiny_models import save_tiny_model

PROGRAM = SUPPORT / "engine_processes.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), head_dim=32)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"tensor_parallel_size": 2}, id="two workers"),
        pytest.param({"tensor_parallel_size": 2, "lora": True}, id="adapters to two workers", marks=pytest.mark.slow),  # 35 s
    ],
)
def test_numbers_and_weights_cross_processes(folder: Path, settings: dict[str, Any]) -> None:
    command = [sys.executable, str(PROGRAM), str(folder), json.dumps(settings)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.strip().splitlines()[-1])
    assert found.pop("in_process") == 0.0
    assert found.pop("stale/logprobs") > 0.01  # else the new weights would prove nothing
    assert len(found) == 6 and max(found.values()) < 1e-3, found
