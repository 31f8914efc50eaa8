"""Weights cross into numpy and back bit for bit, and never share memory with a live parameter."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from rapo_rllib.weights.packing import pack_weights, unpack_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_round_trip_is_exact(dtype: torch.dtype) -> None:
    tensor = (torch.randn(3, 4) * 100).to(dtype)
    restored = unpack_weights(pickle.loads(pickle.dumps(pack_weights([("w", tensor), ("t", tensor.T)]))))
    assert torch.equal(restored["w"], tensor) and torch.equal(restored["t"], tensor.T) and restored["w"].dtype == dtype


def test_bfloat16_travels_as_int16_bits() -> None:
    # 1.0 is 0x3F80 = 16256 in bfloat16; 1.00390625 = 1 + 2^-8 rounds to even, to 1.0
    packed = pack_weights([("w", torch.tensor([1.0, 1.00390625]))], torch.bfloat16)
    assert packed["w"][0] == "bfloat16" and packed["w"][1].dtype == np.int16 and packed["w"][1].tolist() == [16256, 16256]
    assert pack_weights([("step", torch.tensor(3))], torch.bfloat16)["step"][0] == "int64"  # only floats are rounded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_later_updates_do_not_reach_the_copy(dtype: torch.dtype) -> None:
    tensor = torch.ones(2, dtype=dtype)
    packed = pack_weights([("w", tensor)])
    tensor += 1
    assert unpack_weights(packed)["w"].tolist() == [1, 1]


def test_read_only_arrays_are_copied() -> None:
    array = np.ones(2, dtype=np.int16)
    array.flags.writeable = False
    unpack_weights({"w": ("bfloat16", array)})["w"].zero_()
    assert array.tolist() == [1, 1]
