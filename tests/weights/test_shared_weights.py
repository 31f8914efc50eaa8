"""Weights in anonymous memory that other processes map."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from rapo_rllib.weights.shared_memory import SharedWeights


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    wanted = {"a.weight": (3, 5), "b": (7,), "one": (), "none": (0, 4)}
    return {name: torch.randn(shape, generator=generator) for name, shape in wanted.items()} | {"count": torch.tensor([3, 4])}


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16, torch.float64])
def test_safetensors_reads_what_was_written(dtype: torch.dtype | None) -> None:
    shared = SharedWeights(tensors(), dtype)
    for version in range(3):
        named = tensors(version)
        shared.write(named.items())
        found = load_file(shared.path)
        assert found.keys() == named.keys()
        for name, tensor in named.items():
            assert torch.equal(found[name], tensor.to(dtype if dtype and tensor.is_floating_point() else tensor.dtype)), name
    shared.close()


def test_tensors_of_mixed_widths() -> None:
    named = {"half": torch.ones(3, dtype=torch.bfloat16), "byte": torch.ones(5, dtype=torch.uint8), "long": torch.tensor([7])}
    shared = SharedWeights(named)
    shared.write(named.items())
    assert all(torch.equal(load_file(shared.path)[name], tensor) for name, tensor in named.items())


def test_another_process_reads_it_and_nothing_is_left() -> None:
    shared = SharedWeights(tensors())
    shared.write(tensors(1).items())
    code = f"from safetensors.torch import load_file; print(float(load_file({shared.path!r})['b'].sum()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert float(done.stdout) == pytest.approx(float(tensors(1)["b"].sum()), rel=1e-6), done.stderr
    held = load_file(shared.path)
    path = shared.path
    shared.close()
    assert not os.path.exists(path)
    assert torch.equal(held["b"], tensors(1)["b"])  # whoever has it mapped keeps it


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda named: named | {"other": torch.ones(1)}, "'other' has no place"),
        (lambda named: {"b": named["b"]}, "4 weights were not written, 'a.weight' for one"),
    ],
)
def test_another_set_of_weights_is_refused(change: object, message: str) -> None:
    shared = SharedWeights(tensors())
    with pytest.raises(ValueError, match=message):
        shared.write(change(tensors()).items())  # type: ignore[operator]
